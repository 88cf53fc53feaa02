"""The API of kagent's controller (`/api/...`), for agents built with kagent.

The clients of kagent 0.10 (``kagent-core``, ``-adk``, ``-langgraph``, ``-crewai``) work with it unchanged. It
implements everything they need; where kagent's own server loses data or contradicts its clients, it follows the
clients. It makes no decisions of its own: it translates between that protocol and the stores. The clients that store
checkpoints, flows and memories know only the name of a thread and no session: ``stores/conversation/linked_threads.py``
connects the two.

| kagent's | is stored as |
| --- | --- |
| session | a session, whose key is its id |
| event | a message of kind ``kagent.event`` |
| task, push notification | ``a2a_tasks``, ``a2a_push_configs`` |
| share link | ``session_shares`` |
| memory | ``agent_memories`` |
| LangGraph checkpoint and writes | ``checkpoints``, in the thread of the session |
| CrewAI memory and flow state | ``crew_memories`` and ``flows``, in the same thread |
| model configuration | a declared resource, with a provider and a model |
| agent, tool server, tool | ``agents``, ``mcp_servers`` |
| feedback | ``feedback`` and ``general_feedback`` |

``request.py`` determines the user and formats responses, ``redaction.py`` detects secrets, and ``encryption.py`` encrypts events
that contain them; each other module has the routes of one resource.
"""

from .routing import error_response, is_kagent_path, routes

__all__ = ["error_response", "is_kagent_path", "routes"]
