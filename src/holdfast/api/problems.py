"""Errors as HTTP says them: one table of statuses, one body (RFC 9457, ``application/problem+json``).

A caller's mistake is explained to the caller. What is wrong on our side is only named: the words behind it can hold paths and
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
"""The status of each error; one that is not here has its parent's."""


class HttpError(HoldfastError):
    """The request cannot be answered."""

    status = 400
    name = "about:blank"

    def __init__(self, message: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.headers = headers or {}


class NotAuthenticated(HttpError):
    """Nobody knows who asks: there is no API key, or it is not good."""

    status, name = 401, "Forbidden"

    def __init__(self, message: str, *, key: ApiKey | None = None) -> None:
        super().__init__(message, headers={"www-authenticate": "Bearer"})
        self.key = key


class TooManyRequests(HttpError):
    """This caller asks too often."""

    status, name = 429, "LimitExceeded"

    def __init__(self, who: str, wait_s: float) -> None:
        after = {"retry-after": str(math.ceil(wait_s))}
        super().__init__(f"too many requests of {who}: come back in {wait_s:.1f} s", headers=after)


class NoSuchRoute(HttpError):
    """There is nothing at this address."""

    status, name = 404, "NotFound"


class WrongMethod(HttpError):
    """This address does not take that method."""

    status = 405


class WrongContentType(HttpError):
    """A body must be JSON, and say so."""

    status = 415


class BodyTooLarge(HttpError):
    """The body is over the limit request_bytes."""

    status, name = 413, "LimitExceeded"


class HeadTooLarge(HttpError):
    """The address and the headers are over the limit header_bytes."""

    status, name = 431, "LimitExceeded"

    def __init__(self, limits: ServerLimits) -> None:
        message = f"the address and the headers are over the limit header_bytes = {limits.header_bytes:,}"
        super().__init__(message, headers={"connection": "close"})


class TooSlow(HttpError):
    """The body did not come in time."""

    status = 408


class NoLongerSo(HttpError):
    """It has changed since it was read."""

    status, name = 412, "Conflict"


def status_of(kind: type[HoldfastError]) -> int:
    """The status that an error of this class is answered with."""
    if issubclass(kind, HttpError):
        return kind.status
    return next(STATUSES[each] for each in kind.__mro__ if each in STATUSES)


def answer(error: Exception, limits: ServerLimits) -> Response:
    """The response to a request that raised."""
    if isinstance(error, OSError) and error.errno in OUT_OF_FILES:
        error = errors.Unavailable(f"no file descriptors are left: {error.strerror}")
    if not isinstance(error, HoldfastError):
        log.error("a request failed in a way nobody thought of", exc_info=error)
        return _response(Problem("about:blank", "Internal Server Error", 500, "Something unexpected went wrong."), {})
    status = status_of(type(error))
    if status < 500:
        return _response(_explained(error, status), getattr(error, "headers", {}))
    log.error("%s: %s", type(error).__name__, error)
    name = type(error).__name__
    problem = Problem(name, title_of(type(error)), status, title_of(type(error)), getattr(error, "id", None))
    return _response(problem, {"retry-after": str(limits.retry_after_s)} if status == 503 else {})


def _explained(error: HoldfastError, status: int) -> Problem:
    name = error.name if isinstance(error, HttpError) else type(error).__name__
    title = HTTPStatus(status).phrase if name == "about:blank" else title_of(type(error))
    return Problem(name, title, status, str(error))


def title_of(kind: type[HoldfastError]) -> str:
    """What an error of this class means, in one sentence or two."""
    return inspect.cleandoc(kind.__doc__ or kind.__name__).splitlines()[0]


def _response(problem: Problem, headers: dict[str, str]) -> Response:
    return Response(encode(problem), problem.status, {"cache-control": "no-store", **headers}, PROBLEM_TYPE)
