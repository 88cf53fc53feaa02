"""Decoding stored values only creates data: it imports no module, opens no file and runs no code.

Python reports such acts to audit hooks. A hook cannot be removed, so the loading is done in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ACTS = (
    "import", "open", "exec", "compile", "code.__new__", "function.__new__", "pickle.find_class", "marshal.load",
    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "socket.connect", "socket.__new__",
    "ctypes.dlopen", "ctypes.dlsym", "urllib.Request", "builtins.input", "shutil.rmtree", "os.remove", "os.rename",
)  # fmt: skip
"""The audit events that must never occur while stored values are decoded."""

TRAPS: list[Any] = [
    {"__class__": "os.system", "args": ["true"]},
    {"__reduce__": ["os.system", ["true"]]},
    {"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, {"py/tuple": ["true"]}]},
    {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
    {"__module__": "antigravity", "__name__": "x"},
    {"$type": "System.Diagnostics.Process", "$ref": "#/"},
    {"!!python/object/apply:os.system": ["true"]},
    {"__proto__": {"constructor": {"prototype": {"x": 1}}}},
    "!!python/object/apply:os.system ['true']",
    "cos\nsystem\n(S'true'\ntR.",
    "gASVHwAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAR0cnVllIWUUpQu",
    "{{ ''.__class__.__mro__ }}",
    "${jndi:ldap://x}",
    "f'{__import__(\"os\")}'",
    "\x80\x04\x95",
    "2023-11-14T22:13:20Z",
    "file:///etc/passwd",
]

PROGRAM = """
import json, sys
from datetime import datetime, timezone

ACTS, TRAPS = json.loads(sys.argv[1])
noticed, watching = [], False


def hook(event, args):
    if watching and event in ACTS:
        noticed.append(f"{event} {args!r}"[:200])


from holdfast import Filter, FixedClock, Holdfast, NewMessage, meta
from holdfast.core import text
from holdfast.core.paging import decode_cursor, encode_cursor
from holdfast.core.rows import mapper
from holdfast.engines.dialect import Dialect
from holdfast.errors import HoldfastError
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.sessions import Session
import msgspec

hf = Holdfast(sys.argv[2])
acme = hf.tenant("acme")
session = acme.sessions.create(metadata={"traps": TRAPS})
acme.messages.append_many(session.id, [NewMessage(kind="trap", content=trap, metadata={"trap": trap}) for trap in TRAPS])
for number in range(3):
    acme.sessions.create()


def read_everything():
    assert acme.sessions.get(session.id).metadata == {"traps": TRAPS}
    assert [message.content for message in acme.messages.list(session.id)] == TRAPS
    page = acme.sessions.list(limit=2)
    while page.next:
        page = acme.sessions.list(limit=2, cursor=page.next)
    for trap in TRAPS:
        stored = text.dump(trap)
        assert text.load(stored) == trap
        for loading in (
            lambda: text.load(stored[:-1]),
            lambda: decode_cursor(stored, "sessions", int),
            lambda: decode_cursor(encode_cursor("sessions", stored), "sessions", str),
            lambda: acme.sessions.list(where=[meta(stored).eq(stored)], cursor=stored),
        ):
            try:
                loading()
            except HoldfastError:
                pass
        try:
            msgspec.json.decode(stored, type=Filter)
        except msgspec.DecodeError:
            pass
    row = (session.id, session.id, 1, "trap", None, text.dump(TRAPS), 0, text.dump({"t": TRAPS}), 0, 0, 0, 0)
    assert mapper(Message, Dialect.SQLITE)([row])[0].content == TRAPS


read_everything()  # once without the hook, for imports on first use
sys.addaudithook(hook)
watching = True
read_everything()
SABOTAGE
watching = False
print(json.dumps(noticed))
"""


def recorded_events(tmp_path: Path, sabotage: str = "") -> list[str]:
    """Return the events that the hook recorded while everything was read and then ``sabotage`` was run."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.replace("SABOTAGE", sabotage))
    command = [sys.executable, script, json.dumps([ACTS, TRAPS]), tmp_path / "a.db"]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    results: list[str] = json.loads(result.stdout)
    return results


def test_reading_stored_values_never_imports_opens_or_runs_anything(tmp_path: Path) -> None:
    assert recorded_events(tmp_path) == []


@pytest.mark.parametrize(
    ("sabotage", "event"),
    [
        ("import colorsys", "import"),
        ("open('/dev/null')", "open"),
        ("eval('1 + 1')", "compile"),
        ("__import__('pickle').loads(b'cos\\nsystem\\n(S\"true\"\\ntR.')", "pickle.find_class"),
        ("__import__('subprocess').run(['true'])", "subprocess.Popen"),
    ],
    ids=["import", "open", "eval", "pickle", "process"],
)
def test_the_hook_detects_violations(tmp_path: Path, sabotage: str, event: str) -> None:
    assert any(line.startswith(event) for line in recorded_events(tmp_path, sabotage))
