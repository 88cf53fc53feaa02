"""Error responses: the status of each error, and its body (RFC 9457, ``application/problem+json``).

Errors of the caller are explained in the response. Errors of the server are only named: their messages can contain paths and
addresses, and go to the log instead.
"""

from __future__ import annotations

import inspect
import logging
import math
from http import HTTPStatus

from starlette.responses import Response

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.types import ApiKey

from .file_descriptors import OUT_OF_FILES
from .limits import ServerLimits
from .schemas import Problem, encode

log = logging.getLogger("holdfast.api")

PROBLEM_TYPE = "application/problem+json"

STATUSES: dict[type[HoldfastError], int] = {
    errors.InvalidInput: 400,
    errors.LimitExceeded: 422,
    errors.NotFound: 404,
    errors.AlreadyExists: 409,
    errors.Conflict: 409,
    errors.Forbidden: 403,
    errors.Unavailable: 503,
    errors.OutcomeUnknown: 503,
    errors.Closed: 503,
    errors.PackStorageMissing: 500,
    errors.StorageFull: 507,
    errors.SchemaMismatch: 500,
    errors.Corrupt: 500,
    HoldfastError: 500,
}
"""The status of each error; other errors have that of their base class."""


class HttpError(HoldfastError):
    """The request cannot be answered."""

    status = 400
    name = "about:blank"

    def __init__(self, message: str, *, headers: dict[str, str] | None = None, limit: str = "") -> None:
        super().__init__(message)
        self.headers = headers or {}
        self.limit = limit


class NotAuthenticated(HttpError):
    """The request has no API key, or an invalid one."""

    status, name = 401, "Forbidden"

    def __init__(self, message: str, *, key: ApiKey | None = None) -> None:
        super().__init__(message, headers={"www-authenticate": "Bearer"})
        self.key = key


class TooManyRequests(HttpError):
    """This caller sends too many requests."""

    status, name = 429, "LimitExceeded"

    def __init__(self, caller: str, wait_s: float) -> None:
        after = {"retry-after": str(math.ceil(wait_s))}
        super().__init__(f"too many requests from {caller}: retry in {wait_s:.1f} s", headers=after)


class NoSuchRoute(HttpError):
    """This path does not exist."""

    status, name = 404, "NotFound"


class WrongMethod(HttpError):
    """This path does not support the method."""

    status = 405


class WrongContentType(HttpError):
    """The content type of the body is missing or not supported."""

    status = 415


class BodyTooLarge(HttpError):
    """The body is over the limit request_bytes."""

    status, name = 413, "LimitExceeded"


class HeadTooLarge(HttpError):
    """The URL and the headers are over the limit header_bytes."""

    status, name = 431, "LimitExceeded"

    def __init__(self, limits: ServerLimits) -> None:
        message = f"the URL and the headers are over the limit header_bytes = {limits.header_bytes:,}"
        super().__init__(message, headers={"connection": "close"}, limit="header_bytes")


class TooSlow(HttpError):
    """The body did not arrive in time."""

    status = 408


class PreconditionFailed(HttpError):
    """The object was changed since it was read; nothing was changed."""

    status, name = 412, "Conflict"


def status_of(kind: type[HoldfastError]) -> int:
    """Return the HTTP status of an error class."""
    if issubclass(kind, HttpError):
        return kind.status
    return next(STATUSES[base] for base in kind.__mro__ if base in STATUSES)


def answer(error: Exception, limits: ServerLimits) -> Response:
    """Return the response to a request that raised this error."""
    if isinstance(error, OSError) and error.errno in OUT_OF_FILES:
        error = errors.Unavailable(f"no file descriptors are free: {error.strerror}")
    if not isinstance(error, HoldfastError):
        log.error("a request failed with an unexpected error", exc_info=error)
        return _response(Problem("about:blank", "Internal Server Error", 500, "An unexpected error occurred."), {})
    status = status_of(type(error))
    if status < 500:
        return _response(_explain(error, status), getattr(error, "headers", {}))
    log.error("%s: %s", type(error).__name__, error)
    name = type(error).__name__
    problem = Problem(name, title_of(type(error)), status, title_of(type(error)), getattr(error, "id", None))
    return _response(problem, {"retry-after": str(limits.retry_after_s)} if status == 503 else {})


def _explain(error: HoldfastError, status: int) -> Problem:
    name = error.name if isinstance(error, HttpError) else type(error).__name__
    title = HTTPStatus(status).phrase if name == "about:blank" else title_of(type(error))
    fields = {name: getattr(error, name, "") for name in ("field", "limit", "reason")}
    return Problem(name, title, status, str(error), **fields)


def title_of(kind: type[HoldfastError]) -> str:
    """Return the title of an error class: the first line of its docstring."""
    return inspect.cleandoc(kind.__doc__ or kind.__name__).splitlines()[0]


def _response(problem: Problem, headers: dict[str, str]) -> Response:
    return Response(encode(problem), problem.status, {"cache-control": "no-store", **headers}, PROBLEM_TYPE)
