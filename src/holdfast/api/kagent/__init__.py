"""The API of kagent's controller, for agents that were built for it: `/api/...`.

The clients of kagent 0.10 (``kagent-core``, ``-adk``, ``-langgraph``, ``-crewai``) work on it unchanged. What they
need is done; where kagent's own server loses data or contradicts its clients, the clients are followed. Nothing here decides
anything: it translates between that protocol and the stores.

| kagent's | is here |
| --- | --- |
| session | a session, whose key is its id |
| event | a message of kind ``kagent.event`` |
| task, push notification | ``a2a_tasks``, ``a2a_push_configs`` |
| share link | ``session_shares`` |
| memory | ``agent_memories`` |
| LangGraph checkpoint and writes | ``checkpoints``, under the thread that belongs to the session |
| CrewAI memory and flow state | ``crew_memories`` and ``flows``, under the same thread |
| agent, tool server, tool | ``agents``, ``tool_servers`` |
| feedback | ``feedback`` and ``general_feedback`` |

``request.py`` says who asks and what an answer looks like, ``redaction.py`` what is secret, ``sealing.py`` how it is stored;
each other module has the routes of one kind of thing.
"""

from .routing import error_response, is_kagent_path, routes

__all__ = ["error_response", "is_kagent_path", "routes"]
