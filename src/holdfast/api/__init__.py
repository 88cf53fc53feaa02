"""The HTTP server: JSON over HTTP for every store.

An operation is a typed function with a method and a path (``operations.py``); the functions are in ``resources/``. Both the
handlers (``handler.py``) and the OpenAPI document (``openapi.py``) are derived from their signatures, so the two cannot differ.
This package makes no decisions of its own: it translates between HTTP and the public API of Holdfast.

Why Starlette, msgspec and uvicorn: of the maintained frameworks, a thin layer on Starlette with msgspec answered 1.9 times as
many requests as Litestar and 2.8 times as many as FastAPI; uvicorn was faster than granian in every combination; and msgspec can
describe its types as JSON Schema, which the OpenAPI document consists of.

Every caller needs an API key (``auth.py``). The server accepts requests from this machine only, unless remote access is enabled
explicitly.
"""

from holdfast.extras import needs

with needs("server"):
    from .app import application
    from .auth import AccessOptions, networks
    from .limits import ServerLimits
    from .server import serve

__all__ = ["AccessOptions", "ServerLimits", "application", "networks", "serve"]
