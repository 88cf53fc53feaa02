"""Imports the checkpoints of LangGraph's own savers into Holdfast, and verifies every one of them.

The old database is only read, through the saver it belongs to. The writes to a checkpoint are copied before the checkpoint;
writes that were added later are copied by the next import. To resume an interrupted import, or to include changes that the old
application made in the meantime, run the import again: it copies only what is missing and never overwrites anything. After a
thread was copied, each of its checkpoints is read from both databases and compared. At the end of each branch, the comparison
includes the ancestors' values of channels that a checkpoint has no value of, from which a graph reconstructs its delta channels.
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
WriteKey = tuple[str, int]
"""A task id, and the index of one of its writes."""


class CheckpointKey(NamedTuple):
    """Identifies a checkpoint within a thread."""

    namespace: str
    id: str


class OldWrite(Struct, frozen=True):
    """A write of a task, as stored in the old database."""

    task_id: str
    task_path: str
    index: int
    channel: str
    kind: str
    body: bytes


class ImportedThread(Struct, frozen=True):
    """The result of importing one thread."""

    thread_id: str
    checkpoints: int
    copied: int
    """Checkpoints that were missing in Holdfast."""
    verified: int
    """Checkpoints that are identical in both databases."""
    problem: str = ""
    """The reason why some checkpoints are missing or differ."""


class Source(Protocol):
    """An old database."""

    saver: BaseCheckpointSaver[Any]

    def threads(self) -> Sequence[tuple[str, int]]:
        """Return all threads, each with its number of checkpoints."""

    def keys(self, thread_id: str) -> Sequence[CheckpointKey]:
        """Return the checkpoints of a thread, oldest first."""

    def early(self, thread_id: str) -> Sequence[CheckpointKey]:
        """Return checkpoints that have writes but were not saved themselves."""

    def writes(self, thread_id: str, key: CheckpointKey) -> Sequence[OldWrite]:
        """Return the writes to a checkpoint, ordered by task and index."""


@contextmanager
def open_source(url: str, allow: Iterable[Any] = ()) -> Iterator[Source]:
    """Open an old database for reading.

    Args:
        url: ``sqlite:///path``, a path, or ``postgresql://...``.
        allow: classes, or pairs of module and name, that may be deserialized in addition to messages and standard Python types.

    Raises:
        InvalidInput: the file does not exist, or the database contains no LangGraph checkpoints.
    """
    serde = StrictSerializer(allow)
    opening = _postgres(url, serde) if url.startswith(("postgresql://", "postgres://")) else _sqlite(url, serde)
    with opening as source:
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
    """Copy all threads, or the given ones, verify them, and yield the result of each.

    ``advance`` receives the number of completed steps: two for each checkpoint. A thread that cannot be copied completely is
    reported with its problem and does not stop the others.
    """
    selected = None if threads is None else set(threads)
    for thread_id, count in source.threads():
        if selected is not None and thread_id not in selected:
            continue
        mover = _Mover(source, target, thread_id, user, StrictSerializer(allow), advance)
        try:
            yield mover.move()
        except HoldfastError as error:
            advance(2 * count - mover.steps)
            yield ImportedThread(thread_id, count, mover.copied, mover.verified, f"{mover.at}{error}")


class _Mover:
    """Copies and verifies one thread."""

    def __init__(
        self, source: Source, target: TenantHandle, thread_id: str, user: str | None, serde: Any, advance: Any
    ) -> None:
        self._source, self._target, self._thread, self._user = source, target, thread_id, user
        self._serde, self._advance = serde, advance
        self._translator = Translator(user=user, single_writer=False)
        self._versions: dict[CheckpointKey, Any] = {}
        """The channel versions of the checkpoints that were copied."""
        self.copied = self.verified = self.steps = 0
        self.at = ""

    def move(self) -> ImportedThread:
        keys = self._source.keys(self._thread)
        existing = self._existing()
        for key in self._source.early(self._thread):
            self._copy_writes(key)
        for key in keys:
            self.at = f"checkpoint {key.id}: "
            if key in existing:
                self._copy_writes(key, existing[key])
            else:
                self._copy(key)
                self.copied += 1
            self._step()
        differing = self._compare(keys)
        problem = f"differs between the databases: {', '.join(key.id for key in differing)}" if differing else ""
        return ImportedThread(self._thread, len(keys), self.copied, self.verified, problem)

    def _copy(self, key: CheckpointKey) -> None:
        old = _read(self._source.saver, self._thread, key)
        self._copy_writes(key)
        config = old.parent_config or _config(self._thread, CheckpointKey(key.namespace, ""))
        new = self._new_versions(key, old)
        request = self._translator.put(config, old.checkpoint, old.metadata, self._serde, new, use_cache=False)
        self._target.checkpoints.put(**request.arguments)

    def _new_versions(self, key: CheckpointKey, old: CheckpointTuple) -> dict[str, Any]:
        """Return the versions of the channels that changed with a checkpoint."""
        versions = self._versions[key] = old.checkpoint["channel_versions"]
        before: dict[str, Any] = {}
        if old.parent_config is not None:
            parent = CheckpointKey(key.namespace, old.parent_config["configurable"]["checkpoint_id"])
            if parent not in self._versions:
                old_parent = self._source.saver.get_tuple(_config(self._thread, parent))
                self._versions[parent] = {} if old_parent is None else old_parent.checkpoint["channel_versions"]
            before = self._versions[parent]
        return {name: version for name, version in versions.items() if before.get(name) != version}

    def _copy_writes(self, key: CheckpointKey, existing: Container[WriteKey] = ()) -> None:
        by_task: dict[tuple[str, str], list[Write]] = {}
        for write in self._source.writes(self._thread, key):
            if (write.task_id, write.index) in existing:
                continue
            encoder = Encoder(self._serde, None)
            state = dump_value(self._serde.loads_typed((write.kind, write.body)), encoder)
            new = Write(write.index, write.channel, state, encoder.pieces)
            by_task.setdefault((write.task_id, write.task_path), []).append(new)
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

    def _compare(self, keys: Sequence[CheckpointKey]) -> list[CheckpointKey]:
        """Return the checkpoints that differ. They are read by a new saver, whose cache does not contain the copied objects."""
        saver = HoldfastSaver(self._target, user=self._user, serde=self._serde)
        same: dict[CheckpointKey, None] = {}
        parents: set[CheckpointKey] = set()
        for key in keys:
            self.at = f"checkpoint {key.id}: "
            old, new = _read(self._source.saver, self._thread, key), _read(saver, self._thread, key)
            if old.parent_config is not None:
                parents.add(CheckpointKey(key.namespace, old.parent_config["configurable"]["checkpoint_id"]))
            if _same(old, new, self._serde):
                same[key] = None
            self._step()
        for key in [leaf for leaf in same if leaf not in parents]:
            self.at = f"checkpoint {key.id}: "
            if not self._has_equal_history(saver, key):
                del same[key]
        self.verified = len(same)
        return [key for key in keys if key not in same]

    def _has_equal_history(self, saver: HoldfastSaver, key: CheckpointKey) -> bool:
        """Whether both savers find the same values at ancestors for the channels that a checkpoint has no value of."""
        channels = channels_elsewhere(_read(self._source.saver, self._thread, key).checkpoint)
        query = {"config": _config(self._thread, key), "channels": channels}
        one, other = (
            {
                name: (history.get("seed"), [tuple(write) for write in history["writes"]])
                for name, history in reader.get_delta_channel_history(**query).items()
            }
            for reader in (self._source.saver, saver)
        )
        return _equal(one, other, self._serde)

    def _existing(self) -> dict[CheckpointKey, set[WriteKey]]:
        """Return the checkpoints that are already in Holdfast, each with its writes."""
        existing: dict[CheckpointKey, set[WriteKey]] = {}
        cursor: str | None = None
        while True:
            rows = self._target.limits.page(PAGE)
            page = self._target.checkpoints.list(self._thread, user=self._user, limit=rows, cursor=cursor)
            for checkpoint in page:
                writes = {(task.task_id, write.index) for task in checkpoint.tasks for write in task.writes}
                existing[CheckpointKey(checkpoint.namespace, checkpoint.id)] = writes
            if (cursor := page.next) is None:
                return existing

    def _step(self) -> None:
        self.steps += 1
        self._advance(1)


def _same(old: CheckpointTuple, new: CheckpointTuple, serde: Any) -> bool:
    parents = [read.parent_config and read.parent_config["configurable"]["checkpoint_id"] for read in (old, new)]
    if parents[0] != parents[1] or old.metadata != new.metadata:
        return False
    writes = [[tuple(write) for write in pending or ()] for pending in (old.pending_writes, new.pending_writes)]
    return _equal(old.checkpoint, new.checkpoint, serde) and _equal(writes[0], writes[1], serde)


def _equal(one: Any, other: Any, serde: Any) -> bool:
    """Whether two values serialize to the same bytes, because not every value can be compared; or else are equal."""
    return serde.dumps_typed(one) == serde.dumps_typed(other) or bool(one == other)


def _read(saver: BaseCheckpointSaver[Any], thread_id: str, key: CheckpointKey) -> CheckpointTuple:
    checkpoint = saver.get_tuple(_config(thread_id, key))
    if checkpoint is None:
        raise InvalidInput("the checkpoint was removed during the import")
    return checkpoint


def _config(thread_id: str, key: CheckpointKey) -> Any:
    thread = {"thread_id": thread_id, "checkpoint_ns": key.namespace}
    return {"configurable": {**thread, "checkpoint_id": key.id} if key.id else thread}


class _Tables:
    """A source: the queries that both of LangGraph's schemas can answer, with the names of the tables."""

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

    def keys(self, thread_id: str) -> Sequence[CheckpointKey]:
        return [
            CheckpointKey(*row)
            for row in self._fetch(f"{_KEYS} checkpoints WHERE thread_id = {self._mark} {_OLDEST}", thread_id)
        ]

    def early(self, thread_id: str) -> Sequence[CheckpointKey]:
        rows = self._fetch(f"{_KEYS} {self._writes} WHERE thread_id = {self._mark} {_OLDEST}", thread_id)
        saved = set(self.keys(thread_id))
        return [key for key in (CheckpointKey(*row) for row in rows) if key not in saved]

    def writes(self, thread_id: str, key: CheckpointKey) -> Sequence[OldWrite]:
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
        raise InvalidInput(f"file {path} does not exist", field="source")
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    try:
        columns = _columns(connection, path)
        saver = SqliteSaver(connection, serde=serde)
        saver.is_setup = True  # the tables exist, and must not be changed
        saver._has_task_path = "task_path" in columns
        fetch = lambda sql, *args: connection.execute(sql, args).fetchall()  # noqa: E731
        yield _Tables(saver, fetch, ("writes", "value", "?", "task_path" if saver._has_task_path else "''"))
    finally:
        connection.close()


def _columns(connection: sqlite3.Connection, path: Path) -> set[str]:
    try:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(writes)")}
        tables = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'checkpoints'").fetchall()
    except sqlite3.DatabaseError as error:
        raise InvalidInput(f"{path} cannot be read: {error}", field="source") from error
    if not tables or not {"thread_id", "checkpoint_ns", "checkpoint_id", "idx"} <= columns:
        raise InvalidInput(f"{path} contains no checkpoints of LangGraph's SqliteSaver", field="source")
    return columns


@contextmanager
def _postgres(url: str, serde: Any) -> Iterator[Source]:
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import dict_row, tuple_row

    try:
        connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)
    except psycopg.OperationalError as error:
        raise InvalidInput(f"the old database cannot be reached: {error}", field="source") from error
    with connection:
        connection.read_only = True

        def fetch(sql: str, *args: Any) -> Sequence[Any]:
            with connection.cursor(row_factory=tuple_row) as cursor:
                return cursor.execute(sql.encode(), args).fetchall()

        columns = _postgres_columns(fetch)
        if not {"checkpoints.checkpoint_id", "checkpoint_writes.idx", "checkpoint_blobs.version"} <= columns:
            raise InvalidInput("the old database contains no checkpoints of LangGraph's PostgresSaver", field="source")
        path = "task_path" if "checkpoint_writes.task_path" in columns else "''"
        yield _Tables(PostgresSaver(connection, serde=serde), fetch, ("checkpoint_writes", "blob", "%s", path))


def _postgres_columns(fetch: Callable[..., Sequence[Any]]) -> set[str]:
    """Return the columns of the tables of a PostgresSaver. Other savers have other columns."""
    sql = (
        "SELECT t.name || '.' || a.attname FROM pg_attribute AS a JOIN (VALUES ('checkpoints'), ('checkpoint_writes'), "
        "('checkpoint_blobs')) AS t (name) ON a.attrelid = to_regclass(t.name) WHERE a.attnum > 0 AND NOT a.attisdropped"
    )
    return {name for (name,) in fetch(sql)}
