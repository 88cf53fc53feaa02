"""What the server logs and how: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import logging

import click
import msgspec

from holdfast.clock import MICROSECONDS, from_us

from .output import encodable

LEVELS = click.Choice(["debug", "info", "warning", "error"])


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
            return msgspec.json.encode(line).decode()
        except UnicodeEncodeError:
            line["message"] = encodable(record.getMessage())
            return msgspec.json.encode(line).decode()


def start_logging(level: str, form: str) -> None:
    """Log to standard error from here on."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler])
