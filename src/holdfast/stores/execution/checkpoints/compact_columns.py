"""What every checkpoint repeats, in few bytes: ids, the metadata that a graph gives to each of its steps, and the paths of tasks.

An id is mostly a UUID. Its text is 36 bytes, and it stands in the row, in the key, at the child and at every write; so it is
stored as the 16 bytes it means. Any other id is stored as text behind a byte 255, which no text has, and with a zero at the end
where that would be 16 bytes too. Among UUIDs and among other ids the order is that of their texts; UUIDs come first.

The metadata of a step say where it came from, which one it is and which graphs it is part of. Of a graph that is part of no
other, ``{"source": "loop", "step": 7, "parents": {}}`` is stored as ``l7``, and whatever else the metadata say behind it as JSON.
Everything else is stored as JSON. Filters see what was given: the expressions here say how it is spelled out in SQL.

The path of a task begins with why it runs, in words that are LangGraph's own: ``~__pregel_pull, model`` is stored as ``~<model``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ....core import scope as scopes
from ....core import text
from ....engines.dialect import Dialect
from ....errors import Corrupt
from ....limits import Limits

_UUID_BYTES = 16
_OTHER, _FILLED = b"\xff", b"\x00"
_CANONICAL = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SOURCES = {"input": "i", "loop": "l", "update": "u", "fork": "f"}
"""Where LangGraph says that a step came from."""
_SPELLED = {short: source for source, short in _SOURCES.items()}
_UUID_PARTS = ((1, 4), (5, 2), (7, 2), (9, 2), (11, 6))
"""First byte and number of bytes of what the hyphens in a UUID part."""
_STEP_KEYS = frozenset(("source", "step", "parents"))
_REASONS = {"~__pregel_pull, ": "~<", "~__pregel_push, ": "~>"}
"""How the path of a task begins, and its short form; in the same order."""
_AS_IT_IS = "~="
_STEP = re.compile("([iluf])(0|-?[1-9][0-9]{0,17})([{].*)?", re.DOTALL)


def short_id(stored: str) -> bytes:
    """An id, in the form that text is stored in, as its column has it."""
    if len(stored) == 36 and _CANONICAL.fullmatch(stored):
        return bytes.fromhex(stored.replace("-", ""))
    short = _OTHER + stored.encode()
    return short if len(short) != _UUID_BYTES else short + _FILLED


def stored_id(short: bytes) -> str:
    """The id that was shortened, in the form that text is stored in.

    Raises:
        Corrupt: these bytes were not written by ``short_id``.
    """
    short = bytes(short)
    if len(short) == _UUID_BYTES:
        digits = short.hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    try:
        if short.startswith(_OTHER):
            return short[1:].removesuffix(_FILLED).decode()
    except UnicodeDecodeError:
        pass
    raise Corrupt(f"the stored id {short.hex()} is damaged")


def id_of(short: bytes) -> str:
    """The id as it was given."""
    return text.unescape(stored_id(short))


def ids_of(column: Sequence[bytes]) -> list[str]:
    """The ids of many rows."""
    return list(map(id_of, column))


def short_metadata(given: Mapping[str, Any] | None, limits: Limits) -> str:
    """Metadata as their column has them.

    Raises:
        InvalidInput: they are not a dictionary with string keys.
        LimitExceeded: they are too large.
    """
    whole = scopes.metadata(given, limits)
    if not given or not _is_of_step(given):
        return whole
    rest = {key: value for key, value in given.items() if key not in _STEP_KEYS}
    said = text.dump(rest, depth=limits.json_depth) if rest else ""
    return f"{_SOURCES[given['source']]}{given['step']}{said}"


def metadata_of(column: Sequence[str]) -> list[dict[str, Any]]:
    """The metadata of many rows.

    Raises:
        Corrupt: some were not written by ``short_metadata``.
    """
    return list(map(_metadata, column))


def short_path(stored: str) -> str:
    """The path of a task as its column has it; two paths that LangGraph made sort as they did."""
    for reason, short in _REASONS.items():
        if stored.startswith(reason):
            return short + stored[len(reason) :]
    return _AS_IT_IS + stored if stored.startswith((*_REASONS.values(), _AS_IT_IS)) else stored


def path_of(short: str) -> str:
    """The path that was shortened, as it was given."""
    for reason, begin in _REASONS.items():
        if short.startswith(begin):
            return reason + text.unescape(short[len(begin) :])
    return text.unescape(short.removeprefix(_AS_IT_IS))


def _is_of_step(given: Mapping[str, Any]) -> bool:
    source, step, parents = (given.get(key) for key in ("source", "step", "parents"))
    known = type(source) is str and source in _SOURCES
    return known and type(step) is int and abs(step) < 10**18 and type(parents) is dict and not parents


def _metadata(short: str) -> dict[str, Any]:
    step = _STEP.fullmatch(short)
    if step is None:
        found: dict[str, Any] = text.load(short)
        return found
    rest = text.load(step[3]) if step[3] else {}
    return {"source": _SPELLED[step[1]], "step": int(step[2]), "parents": {}, **rest}


def spelled_id(column: str, dialect: Dialect) -> str:
    """An expression for the text of an id."""
    if dialect is Dialect.POSTGRES:
        uuid, other = f"encode({column}, 'hex')::uuid::text", f"btrim(substr({column}, 2), '\\x00')"
        return f"(CASE length({column}) WHEN 16 THEN {uuid} ELSE convert_from({other}, 'UTF8') END COLLATE \"C\")"
    uuid = " || '-' || ".join(f"hex(substr({column}, {at}, {size}))" for at, size in _UUID_PARTS)
    size = f"CASE substr({column}, -1) WHEN x'00' THEN 15 ELSE length({column}) END"
    other = f"CAST(substr({column}, 2, {size}) AS TEXT)"
    return f"(CASE length({column}) WHEN 16 THEN lower({uuid}) ELSE {other} END)"


def spelled_metadata(column: str, dialect: Dialect) -> str:
    """An expression for metadata as JSON."""
    sources = " ".join(f"WHEN '{short}' THEN '{source}'" for source, short in _SOURCES.items())
    source = f"CASE substr({column}, 1, 1) {sources} END"
    if dialect is Dialect.POSTGRES:
        step = f"substring({column} FROM '^.(-?[0-9]+)')::bigint"
        rest = f"COALESCE(substring({column} FROM '[{{].*$')::jsonb, '{{}}')"
        spelled = f"{rest} || jsonb_build_object('source', {source}, 'step', {step}, 'parents', '{{}}'::jsonb)"
        return f"(CASE substr({column}, 1, 1) WHEN '{{' THEN {column}::jsonb ELSE {spelled} END)"
    step = f"CAST(substr({column}, 2) AS INTEGER)"
    rest = f"CASE instr({column}, '{{') WHEN 0 THEN '{{}}' ELSE substr({column}, instr({column}, '{{')) END"
    spelled = f"json_patch({rest}, json_object('source', {source}, 'step', {step}, 'parents', json('{{}}')))"
    return f"(CASE substr({column}, 1, 1) WHEN '{{' THEN {column} ELSE {spelled} END)"
