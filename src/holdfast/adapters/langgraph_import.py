"""Moving the checkpoints of LangGraph's own savers into Holdfast: every thread, every checkpoint, every write, and then a look.

The old database is only read, through the saver it belongs to. Writes are copied before the checkpoint they were made to, and
those that came later with the next import: whoever was stopped in the middle, or whose old application ran on, starts again
and goes on with what is missing. What is there is never written over. At the end of a thread each of its checkpoints is read
from both databases and compared; and at the end of each branch also what ancestors say about the channels that a checkpoint has
no value of, which is where a graph finds the state of its delta channels.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from holdfast import TenantHandle, Write
from holdfast.adapters.langgraph import HoldfastSaver, StrictSerializer
from holdfast.adapters.langgraph.codec import Encoder, dump_value
from holdfast.adapters.langgraph.translate import Translator, channels_elsewhere
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.extras import needs

with needs("langgraph"):
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

PAGE = 100
Written = tuple[str, int]
"""A task, and which of its writes."""


class Key(NamedTuple):
    """Which checkpoint of a thread."""

    namespace: str
    id: str


class OldWrite(Struct, frozen=True):
    """What a task wrote, as the old database has it."""

    task_id: str
    task_path: str
    index: int
    channel: str
    kind: str
    body: bytes


class ImportedThread(Struct, frozen=True):
    """What became of one thread."""

    thread_id: str
    checkpoints: int
    copied: int
    """Those that were not there yet."""
    verified: int
    """Those that are the same in both databases."""
    problem: str = ""
    """Why not all of them are."""


class Source(Protocol):
    """An old database."""

    saver: BaseCheckpointSaver[Any]

    def threads(self) -> Sequence[tuple[str, int]]:
        """All threads, each with how many checkpoints it has."""

    def keys(self, thread_id: str) -> Sequence[Key]:
        """The checkpoints of a thread, the oldest first."""

    def early(self, thread_id: str) -> Sequence[Key]:
        """Checkpoints that have not come, although something was written to them."""

    def writes(self, thread_id: str, key: Key) -> Sequence[OldWrite]:
        """What tasks wrote to a checkpoint, by task and in order."""


@contextmanager
def open_source(url: str, allow: Iterable[Any] = ()) -> Iterator[Source]:
    """An old database, for reading.

    Args:
        url: ``sqlite:///path``, a path, or ``postgresql://...``.
        allow: classes, or pairs of module and name, that may be read beside messages and Python's own types.

    Raises:
        InvalidInput: there is no such file, or it holds no checkpoints of LangGraph.
    """
    serde = StrictSerializer(allow)
    opened = _postgres(url, serde) if url.startswith(("postgresql://", "postgres://")) else _sqlite(url, serde)
    with opened as source:
        yield source


def import_threads(
    source: Source,
    target: TenantHandle,
    *,
    user: str | None = None,
    threads: Iterable[str] | None = None,
    allow: Iterable[Any] = (),
    advance: Callable[[int], None] = lambda steps: None,
) -> Iterator[ImportedThread]:
    """Copy threads, all or those that are named, and compare them; what became of each.

    ``advance`` is told how far it has got: twice the number of checkpoints in all. A thread that cannot be copied whole is
    reported with its problem, and the others go on.
    """
    wanted = None if threads is None else set(threads)
    for thread_id, count in source.threads():
        if wanted is not None and thread_id not in wanted:
            continue
        mover = _Mover(source, target, thread_id, user, StrictSerializer(allow), advance)
        try:
            yield mover.move()
        except HoldfastError as error:
            advance(2 * count - mover.steps)
            yield ImportedThread(thread_id, count, mover.copied, mover.verified, f"{mover.at}{error}")


class _Mover:
    """Moves one thread."""

    def __init__(
        self, source: Source, target: TenantHandle, thread_id: str, user: str | None, serde: Any, advance: Any
    ) -> None:
        self._source, self._target, self._thread, self._user = source, target, thread_id, user
        self._serde, self._advance = serde, advance
        self._translator = Translator(user=user, single_writer=False)
        self._versions: dict[Key, Any] = {}
        """The versions of the channels of checkpoints that were copied."""
        self.copied = self.verified = self.steps = 0
        self.at = ""

    def move(self) -> ImportedThread:
        keys = self._source.keys(self._thread)
        there = self._there()
        for key in self._source.early(self._thread):
            self._copy_writes(key)
        for key in keys:
            self.at = f"checkpoint {key.id}: "
            if key in there:
                self._copy_writes(key, there[key])
            else:
                self._copy(key)
                self.copied += 1
            self._step()
        differing = self._compare(keys)
        problem = f"not the same in both: {', '.join(each.id for each in differing)}" if differing else ""
        return ImportedThread(self._thread, len(keys), self.copied, self.verified, problem)

    def _copy(self, key: Key) -> None:
        found = _read(self._source.saver, self._thread, key)
        self._copy_writes(key)
        config = found.parent_config or _config(self._thread, Key(key.namespace, ""))
        new = self._new_versions(key, found)
        request = self._translator.put(config, found.checkpoint, found.metadata, self._serde, new, use_cache=False)
        self._target.checkpoints.put(**request.arguments)

    def _new_versions(self, key: Key, found: CheckpointTuple) -> dict[str, Any]:
        """The versions of the channels that changed with a checkpoint."""
        versions = self._versions[key] = found.checkpoint["channel_versions"]
        before: dict[str, Any] = {}
        if found.parent_config is not None:
            parent = Key(key.namespace, found.parent_config["configurable"]["checkpoint_id"])
            if parent not in self._versions:
                there = self._source.saver.get_tuple(_config(self._thread, parent))
                self._versions[parent] = {} if there is None else there.checkpoint["channel_versions"]
            before = self._versions[parent]
        return {name: version for name, version in versions.items() if before.get(name) != version}

    def _copy_writes(self, key: Key, there: Container[Written] = ()) -> None:
        by_task: dict[tuple[str, str], list[Write]] = {}
        for each in self._source.writes(self._thread, key):
            if (each.task_id, each.index) in there:
                continue
            encoder = Encoder(self._serde, None)
            state = dump_value(self._serde.loads_typed((each.kind, each.body)), encoder)
            new = Write(each.index, each.channel, state, encoder.pieces)
            by_task.setdefault((each.task_id, each.task_path), []).append(new)
        for (task_id, task_path), writes in by_task.items():
            self._target.checkpoints.put_writes(
                self._thread,
                id=key.id,
                namespace=key.namespace,
                task_id=task_id,
                task_path=task_path,
                new=writes,
                user=self._user,
            )

    def _compare(self, keys: Sequence[Key]) -> list[Key]:
        """The checkpoints that are not the same in both; read by a saver that remembers nothing of what was copied."""
        saver = HoldfastSaver(self._target, user=self._user, serde=self._serde)
        same: dict[Key, None] = {}
        parents: set[Key] = set()
        for key in keys:
            self.at = f"checkpoint {key.id}: "
            old, new = _read(self._source.saver, self._thread, key), _read(saver, self._thread, key)
            if old.parent_config is not None:
                parents.add(Key(key.namespace, old.parent_config["configurable"]["checkpoint_id"]))
            if _same(old, new, self._serde):
                same[key] = None
            self._step()
        for key in [each for each in same if each not in parents]:
            self.at = f"checkpoint {key.id}: "
            if not self._is_read_alike(saver, key):
                del same[key]
        self.verified = len(same)
        return [key for key in keys if key not in same]

    def _is_read_alike(self, saver: HoldfastSaver, key: Key) -> bool:
        """Whether both savers find the same at ancestors for the channels that a checkpoint has no value of."""
        channels = channels_elsewhere(_read(self._source.saver, self._thread, key).checkpoint)
        asked = {"config": _config(self._thread, key), "channels": channels}
        one, other = (
            {
                name: (found.get("seed"), [tuple(write) for write in found["writes"]])
                for name, found in each.get_delta_channel_history(**asked).items()
            }
            for each in (self._source.saver, saver)
        )
        return _alike(one, other, self._serde)

    def _there(self) -> dict[Key, set[Written]]:
        """The checkpoints that were copied already, each with what is written to it."""
        found: dict[Key, set[Written]] = {}
        cursor: str | None = None
        while True:
            most = self._target.limits.page(PAGE)
            page = self._target.checkpoints.list(self._thread, user=self._user, limit=most, cursor=cursor)
            for each in page:
                written = {(task.task_id, write.index) for task in each.tasks for write in task.writes}
                found[Key(each.namespace, each.id)] = written
            if (cursor := page.next) is None:
                return found

    def _step(self) -> None:
        self.steps += 1
        self._advance(1)


def _same(old: CheckpointTuple, new: CheckpointTuple, serde: Any) -> bool:
    parents = [each.parent_config and each.parent_config["configurable"]["checkpoint_id"] for each in (old, new)]
    if parents[0] != parents[1] or old.metadata != new.metadata:
        return False
    writes = [[tuple(each) for each in pending or ()] for pending in (old.pending_writes, new.pending_writes)]
    return _alike(old.checkpoint, new.checkpoint, serde) and _alike(writes[0], writes[1], serde)


def _alike(one: Any, other: Any, serde: Any) -> bool:
    """Whether two values are the same: in bytes, because not everything can be compared; or else equal."""
    return serde.dumps_typed(one) == serde.dumps_typed(other) or bool(one == other)


def _read(saver: BaseCheckpointSaver[Any], thread_id: str, key: Key) -> CheckpointTuple:
    found = saver.get_tuple(_config(thread_id, key))
    if found is None:
        raise InvalidInput("it was removed while it was copied")
    return found


def _config(thread_id: str, key: Key) -> Any:
    asked = {"thread_id": thread_id, "checkpoint_ns": key.namespace}
    return {"configurable": {**asked, "checkpoint_id": key.id} if key.id else asked}


class _Tables:
    """The queries both of LangGraph's savers can be asked, with the names of the tables they write to."""

    def __init__(self, saver: BaseCheckpointSaver[Any], fetch: Callable[..., Sequence[Any]], names: Any) -> None:
        self.saver, self._fetch = saver, fetch
        self._writes, self._body, self._mark, self._path = names

    def threads(self) -> Sequence[tuple[str, int]]:
        return [
            (thread_id, count)
            for thread_id, count in self._fetch(
                f"SELECT thread_id, SUM(n) FROM (SELECT thread_id, 1 AS n FROM checkpoints UNION ALL "  # noqa: S608
                f"SELECT DISTINCT thread_id, 0 FROM {self._writes}) AS all_of_them GROUP BY thread_id ORDER BY thread_id"
            )
        ]

    def keys(self, thread_id: str) -> Sequence[Key]:
        return [
            Key(*row) for row in self._fetch(f"{_KEYS} checkpoints WHERE thread_id = {self._mark} {_OLDEST}", thread_id)
        ]

    def early(self, thread_id: str) -> Sequence[Key]:
        written = self._fetch(f"{_KEYS} {self._writes} WHERE thread_id = {self._mark} {_OLDEST}", thread_id)
        there = set(self.keys(thread_id))
        return [key for key in (Key(*row) for row in written) if key not in there]

    def writes(self, thread_id: str, key: Key) -> Sequence[OldWrite]:
        rows = self._fetch(
            f"SELECT task_id, {self._path}, idx, channel, type, {self._body} FROM {self._writes} "  # noqa: S608
            f"WHERE thread_id = {self._mark} AND checkpoint_ns = {self._mark} AND checkpoint_id = {self._mark} "
            "ORDER BY task_id, idx",
            thread_id,
            *key,
        )
        return [OldWrite(task, path, at, name, kind, bytes(body or b"")) for task, path, at, name, kind, body in rows]


_KEYS = "SELECT DISTINCT checkpoint_ns, checkpoint_id FROM"
_OLDEST = "ORDER BY checkpoint_id, checkpoint_ns"


@contextmanager
def _sqlite(url: str, serde: Any) -> Iterator[Source]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    path = Path(url.removeprefix("sqlite:///"))
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    try:
        columns = _columns(connection, path)
        saver = SqliteSaver(connection, serde=serde)
        saver.is_setup = True  # its tables are there, and this may not change them
        saver._has_task_path = "task_path" in columns
        fetch = lambda sql, *args: connection.execute(sql, args).fetchall()  # noqa: E731
        yield _Tables(saver, fetch, ("writes", "value", "?", "task_path" if saver._has_task_path else "''"))
    finally:
        connection.close()


def _columns(connection: sqlite3.Connection, path: Path) -> set[str]:
    try:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(writes)")}
        there = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'checkpoints'").fetchall()
    except sqlite3.DatabaseError as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error
    if not there or not {"thread_id", "checkpoint_ns", "checkpoint_id", "idx"} <= columns:
        raise InvalidInput(f"{path} holds no checkpoints of LangGraph's SqliteSaver")
    return columns


@contextmanager
def _postgres(url: str, serde: Any) -> Iterator[Source]:
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import dict_row, tuple_row

    try:
        connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)
    except psycopg.OperationalError as error:
        raise InvalidInput(f"the old database cannot be reached: {error}") from error
    with connection:
        connection.read_only = True

        def fetch(sql: str, *args: Any) -> Sequence[Any]:
            with connection.cursor(row_factory=tuple_row) as cursor:
                return cursor.execute(sql.encode(), args).fetchall()

        there = _postgres_columns(fetch)
        if not {"checkpoints.checkpoint_id", "checkpoint_writes.idx", "checkpoint_blobs.version"} <= there:
            raise InvalidInput("the old database holds no checkpoints of LangGraph's PostgresSaver")
        path = "task_path" if "checkpoint_writes.task_path" in there else "''"
        yield _Tables(PostgresSaver(connection, serde=serde), fetch, ("checkpoint_writes", "blob", "%s", path))


def _postgres_columns(fetch: Callable[..., Sequence[Any]]) -> set[str]:
    """The columns of the tables a PostgresSaver writes to; one of another kind has others."""
    asked = (
        "SELECT t.name || '.' || a.attname FROM pg_attribute AS a JOIN (VALUES ('checkpoints'), ('checkpoint_writes'), "
        "('checkpoint_blobs')) AS t (name) ON a.attrelid = to_regclass(t.name) WHERE a.attnum > 0 AND NOT a.attisdropped"
    )
    return {name for (name,) in fetch(asked)}
