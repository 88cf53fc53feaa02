"""What commands log and how: lines for people, or one JSON object a line for programs, and a line for every deletion."""

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
"""The logger that has a line of JSON for each snapshot that retention removes, and nothing else."""


class _Stderr(logging.Handler):
    """Writes to what standard error is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, in one piece."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self.handleError(record)


class JsonLines(logging.Formatter):
    """A record as one JSON object: when, how grave, where, and what; where an error was, also its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
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
    """A record as one line for people, and below it, where an error was, its traceback."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name that logging calls
        """The line; what is in it can be anybody's."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  # as above
        """The traceback, whose last line can be anybody's too."""
        return printable(super().formatException(ei))


def start_logging(level: str, form: str) -> None:
    """Log to standard error from here on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def show_deletions(file: str | None = None) -> None:
    """Write the line of JSON for each deletion as it is, on a line of its own: to standard error, or to a file.

    Whatever the log level and its format are. It ends with the command that runs.
    """
    log = logging.getLogger(RETENTION)
    if any(each.name == RETENTION for each in log.handlers):
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
