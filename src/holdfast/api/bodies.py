"""The bodies of requests: JSON, which is read whole, and what is too large for that, which is put into a file."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Receive

from .limits import ServerLimits
from .problems import BodyTooLarge, WrongContentType

JSON_TYPE = "application/json"
_DISCARDED_MOST = 4
"""How many times the limit of a body is read and thrown away, so that a caller still sending hears the answer."""


class Disconnected(Exception):
    """The caller has gone: there is nobody to answer."""


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limits: ServerLimits) -> bytes:
    """The body of a request.

    Raises:
        WrongContentType: it does not say that it is JSON. A web page of somebody else cannot say so without asking first.
        BodyTooLarge: it is over ``request_bytes``.
    """
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != JSON_TYPE.encode():
        raise WrongContentType(f"send the body with Content-Type: {JSON_TYPE}")
    declared = int(headers.get(b"content-length", b"0"))
    patient = b"expect" not in headers and declared <= _DISCARDED_MOST * limits.request_bytes
    if declared > limits.request_bytes and not patient:
        raise _too_large(limits)
    return await _chunks(receive, limits)


async def _chunks(receive: Receive, limits: ServerLimits) -> bytes:
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Disconnected
        size += len(event.get("body", b""))
        more = event.get("more_body", False)
        if size <= limits.request_bytes:
            chunks.append(event.get("body", b""))
        elif size > _DISCARDED_MOST * limits.request_bytes:
            break
    if size > limits.request_bytes:
        raise _too_large(limits)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limits: ServerLimits) -> BodyTooLarge:
    message = f"the body is over the limit request_bytes = {limits.request_bytes:,}"
    return BodyTooLarge(message, headers={"connection": "close"})
