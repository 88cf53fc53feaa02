"""The HTTP server: the stores, resource by resource, as JSON over HTTP.

``operations.py`` says what an operation is: a typed function with a method and a path. The functions stand in ``resources/``.
From their signatures come both the handlers (``handler.py``) and the OpenAPI document (``openapi.py``), so the two cannot
differ. Nothing here decides anything: it translates between HTTP and the public names of Holdfast.

Why Starlette, msgspec and uvicorn: of the well-kept frameworks, a thin layer on Starlette with msgspec answers 1.9 times as many
requests as Litestar and 2.8 times as many as FastAPI, uvicorn was ahead of granian in every pairing, and msgspec describes
its own types as JSON Schema, which is what an OpenAPI document is made of.

Who asks must have an API key (``auth.py``), and the server answers this machine only, unless told otherwise by name.
"""

from holdfast.extras import needs

with needs("server"):
    from .app import application
    from .auth import AccessOptions, networks
    from .limits import ServerLimits
    from .server import serve

__all__ = ["AccessOptions", "ServerLimits", "application", "networks", "serve"]
