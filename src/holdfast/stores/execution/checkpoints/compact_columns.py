"""Compact encodings of the values that every checkpoint repeats: ids, the metadata of graph steps, and task paths.

An id is usually a UUID. Its text takes 36 bytes, and it is in the row, in the key, in the child and in every write; so it is
stored as 16 bytes. Any other id is stored as its text after a byte 255, which no text contains, with a zero byte at the end
if the result would be 16 bytes long, too. UUIDs among themselves and other ids among themselves sort as their texts do; UUIDs
come first.

The metadata of a step contain its source, its number and its parent graphs. For a graph without parents,
``{"source": "loop", "step": 7, "parents": {}}`` is stored as ``l7``, followed by the other metadata as JSON. All
other metadata are stored as JSON. Filters work on the original values: the expressions of this module decode them in SQL.

The path of a task begins with the reason why it runs, in LangGraph's own words: ``~__pregel_pull, model`` is stored as
``~<model``.
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
"""LangGraph's sources of a step, and their short forms."""
_SOURCES_BY_CODE = {code: source for source, code in _SOURCES.items()}
_UUID_PARTS = ((1, 4), (5, 2), (7, 2), (9, 2), (11, 6))
"""First byte and number of bytes of the parts of a UUID between hyphens."""
_STEP_KEYS = frozenset(("source", "step", "parents"))
_REASONS = {"~__pregel_pull, ": "~<", "~__pregel_push, ": "~>"}
"""How the path of a task begins, and its short form; in the same sort order."""
_VERBATIM = "~="
_STEP = re.compile("([iluf])(0|-?[1-9][0-9]{0,17})([{].*)?", re.DOTALL)


def encode_id(id: str) -> bytes:
    """Return an id, in the escaped form of stored text, as column bytes."""
    if len(id) == 36 and _CANONICAL.fullmatch(id):
        return bytes.fromhex(id.replace("-", ""))
    encoded = _OTHER + id.encode()
    return encoded if len(encoded) != _UUID_BYTES else encoded + _FILLED


def decode_id(encoded: bytes) -> str:
    """Return the id that ``encode_id`` encoded, in the escaped form of stored text.

    Raises:
        Corrupt: these bytes were not written by ``encode_id``.
    """
    encoded = bytes(encoded)
    if len(encoded) == _UUID_BYTES:
        digits = encoded.hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    try:
        if encoded.startswith(_OTHER):
            return encoded[1:].removesuffix(_FILLED).decode()
    except UnicodeDecodeError:
        pass
    raise Corrupt(f"the stored id {encoded.hex()} is damaged")


def id_of(encoded: bytes) -> str:
    """Return the original id."""
    return text.unescape(decode_id(encoded))


def ids_of(column: Sequence[bytes]) -> list[str]:
    """Return the original ids of many rows."""
    return list(map(id_of, column))


def encode_metadata(metadata: Mapping[str, Any] | None, limits: Limits) -> str:
    """Return metadata in their column form.

    Raises:
        InvalidInput: they are not a dictionary with string keys.
        LimitExceeded: they are too large.
    """
    encoded = scopes.metadata(metadata, limits)
    if not metadata or not _is_of_step(metadata):
        return encoded
    rest = {key: value for key, value in metadata.items() if key not in _STEP_KEYS}
    suffix = text.dump(rest, depth=limits.json_depth) if rest else ""
    return f"{_SOURCES[metadata['source']]}{metadata['step']}{suffix}"


def metadata_of(column: Sequence[str]) -> list[dict[str, Any]]:
    """Return the original metadata of many rows.

    Raises:
        Corrupt: some were not written by ``encode_metadata``.
    """
    return list(map(_metadata, column))


def encode_path(path: str) -> str:
    """Return the path of a task in its column form; paths of LangGraph keep their sort order."""
    for reason, code in _REASONS.items():
        if path.startswith(reason):
            return code + path[len(reason) :]
    return _VERBATIM + path if path.startswith((*_REASONS.values(), _VERBATIM)) else path


def path_of(encoded: str) -> str:
    """Return the original path of a task."""
    for reason, code in _REASONS.items():
        if encoded.startswith(code):
            return reason + text.unescape(encoded[len(code) :])
    return text.unescape(encoded.removeprefix(_VERBATIM))


def _is_of_step(metadata: Mapping[str, Any]) -> bool:
    source, step, parents = (metadata.get(key) for key in ("source", "step", "parents"))
    is_source = type(source) is str and source in _SOURCES
    return is_source and type(step) is int and abs(step) < 10**18 and type(parents) is dict and not parents


def _metadata(encoded: str) -> dict[str, Any]:
    step = _STEP.fullmatch(encoded)
    if step is None:
        metadata: dict[str, Any] = text.load(encoded)
        return metadata
    rest = text.load(step[3]) if step[3] else {}
    return {"source": _SOURCES_BY_CODE[step[1]], "step": int(step[2]), "parents": {}, **rest}


def id_expression(column: str, dialect: Dialect) -> str:
    """Return an SQL expression for the text of an id."""
    if dialect is Dialect.POSTGRES:
        uuid, other = f"encode({column}, 'hex')::uuid::text", f"btrim(substr({column}, 2), '\\x00')"
        return f"(CASE length({column}) WHEN 16 THEN {uuid} ELSE convert_from({other}, 'UTF8') END COLLATE \"C\")"
    uuid = " || '-' || ".join(f"hex(substr({column}, {start}, {size}))" for start, size in _UUID_PARTS)
    size = f"CASE substr({column}, -1) WHEN x'00' THEN 15 ELSE length({column}) END"
    other = f"CAST(substr({column}, 2, {size}) AS TEXT)"
    return f"(CASE length({column}) WHEN 16 THEN lower({uuid}) ELSE {other} END)"


def metadata_expression(column: str, dialect: Dialect) -> str:
    """Return an SQL expression for metadata as JSON."""
    sources = " ".join(f"WHEN '{code}' THEN '{source}'" for source, code in _SOURCES.items())
    source = f"CASE substr({column}, 1, 1) {sources} END"
    if dialect is Dialect.POSTGRES:
        step = f"substring({column} FROM '^.(-?[0-9]+)')::bigint"
        rest = f"COALESCE(substring({column} FROM '[{{].*$')::jsonb, '{{}}')"
        decoded = f"{rest} || jsonb_build_object('source', {source}, 'step', {step}, 'parents', '{{}}'::jsonb)"
        return f"(CASE substr({column}, 1, 1) WHEN '{{' THEN {column}::jsonb ELSE {decoded} END)"
    step = f"CAST(substr({column}, 2) AS INTEGER)"
    rest = f"CASE instr({column}, '{{') WHEN 0 THEN '{{}}' ELSE substr({column}, instr({column}, '{{')) END"
    decoded = f"json_patch({rest}, json_object('source', {source}, 'step', {step}, 'parents', json('{{}}')))"
    return f"(CASE substr({column}, 1, 1) WHEN '{{' THEN {column} ELSE {decoded} END)"
