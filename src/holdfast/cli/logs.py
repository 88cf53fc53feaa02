"""Logging of commands: plain lines for people, one JSON object per line for programs, and a line for every deletion."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click
import msgspec

from holdfast.clock import MICROSECONDS, from_us

from .output import encodable, in_json, one_line, printable

LEVELS = click.Choice(["debug", "info", "warning", "error"])
RETENTION = "holdfast.retention"
"""The logger with one line of JSON for each snapshot that retention removes, and no other lines."""


class _Stderr(logging.Handler):
    """Writes to the current ``sys.stderr``, even if it was replaced after the handler was created."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line with a single call."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self.handleError(record)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, message, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": from_us(round(record.created * MICROSECONDS)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        try:
            return in_json(msgspec.json.encode(line).decode())
        except UnicodeEncodeError:
            line["message"] = encodable(record.getMessage())
            return in_json(msgspec.json.encode(line).decode())


class PlainLines(logging.Formatter):
    """Formats a record as one line for people, followed by the traceback of an error."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name that logging calls
        """Return the line, escaped because it may contain untrusted text."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  # as above
        """Return the traceback, escaped because its last line may contain untrusted text."""
        return printable(super().formatException(ei))


def start_logging(level: str, form: str) -> None:
    """Configure logging to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def show_deletions(file: str | None = None) -> None:
    """Write the JSON line of each deletion, unformatted, to standard error or to a file.

    This does not depend on the log level and the log format. It ends with the current command.
    """
    log = logging.getLogger(RETENTION)
    if any(handler.name == RETENTION for handler in log.handlers):
        return
    handler: logging.Handler = _Stderr() if file is None else logging.FileHandler(file, encoding="utf-8")
    handler.name = RETENTION
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(lambda record: record.name == RETENTION)
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False

    def undo() -> None:
        log.removeHandler(handler)
        log.level, log.propagate = before
        handler.close()

    context = click.get_current_context(silent=True)
    if context is not None:
        context.call_on_close(undo)
