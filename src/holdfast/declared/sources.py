"""Where resources come from while rows are kept in step: a folder of manifests, or a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Protocol

from msgspec import Struct

from holdfast.clock import monotonic_s
from holdfast.errors import HoldfastError, InvalidManifest, NotFound, Unavailable
from holdfast.limits import Limits

from .documents import Document, Place, manifest_files, read_documents
from .mirror import Expired, Mirror, ObjectList, WatchFailed
from .resources import DEFAULT_NAMESPACE, Resource, read_resource, read_resources
from .schemas import GROUP, KINDS
from .values import Values, values_of

POLL_S = 1.0
"""Seconds between two looks at a folder."""
RETRY_S, MAX_RETRY_S = 1.0, 60.0
"""Seconds after which a failed request to a cluster is repeated: the first time, and at most."""


class SourceState(Struct, frozen=True, kw_only=True):
    """The resources of a source at one time."""

    resources: Sequence[Resource]
    values: Values
    prune: Sequence[str]
    """The complete kinds: a resource of these that is missing was deleted."""
    errors: Mapping[str, HoldfastError] = {}
    """Resources that are not valid, by reference: their rows stay as they are."""
    is_whole: bool = True
    """Whether one resource that cannot be applied keeps all others from being applied."""


Report = Callable[[HoldfastError], None]


class ResourceSource(Protocol):
    """A set of resources that changes."""

    @property
    def name(self) -> str:
        """The name under which its resources are applied."""

    def start(self, changed: Event, stop: Event, report: Report) -> None:
        """Begin to set ``changed`` after each change, in threads of its own, until ``stop`` is set."""

    def load(self) -> None:
        """Read the resources once, in this thread.

        Raises:
            HoldfastError: they cannot be read.
        """

    def snapshot(self) -> SourceState | None:
        """Return the current resources; ``None`` if they are not known yet."""


class FolderSource:
    """The manifests of a folder, or of one file. All of them are applied, or none."""

    def __init__(
        self,
        path: Path,
        values: Values,
        limits: Limits,
        *,
        name: str,
        namespace: str = DEFAULT_NAMESPACE,
        poll_s: float = POLL_S,
    ) -> None:
        self.name = name
        self._path, self._values, self._limits = path, values, limits
        self._namespace, self._poll_s = namespace, poll_s

    def start(self, changed: Event, stop: Event, report: Report) -> None:
        # The state is read here: what changes from now on is noticed, however late the thread starts.
        arguments = (self._state(), changed, stop)
        Thread(target=self._poll, args=arguments, name="holdfast-manifests", daemon=True).start()

    def load(self) -> None:
        """Nothing to do: ``snapshot`` reads the files."""

    def snapshot(self) -> SourceState:
        documents = read_documents(self._path, self._limits)
        return SourceState(resources=read_resources(documents, self._namespace), values=self._values, prune=[*KINDS])

    def _poll(self, applied: Sequence[Any], changed: Event, stop: Event) -> None:
        """Report a change when the files stay the same for one interval, so that no half-written set is read."""
        seen = applied
        while not stop.wait(self._poll_s):
            now = self._state()
            if now == seen and now != applied:
                applied = now
                changed.set()
            seen = now

    def _state(self) -> Sequence[tuple[Any, ...]]:
        """Return what changes when a file is written, moved or deleted."""
        try:
            files = [(path, path.stat()) for path in manifest_files(self._path)]
        except (OSError, InvalidManifest) as error:
            return [(type(error).__name__,)]
        return [(str(path), info.st_mtime_ns, info.st_size, info.st_ino) for path, info in files]


class ReadableCluster(Protocol):
    """What a ``ClusterSource`` needs of a cluster; see ``cluster.Cluster``."""

    address: str

    def versions(self) -> dict[str, str]: ...
    def objects(self, kind: str, version: str, namespace: str | None) -> ObjectList: ...
    def watch(self, kind: str, version: str, namespace: str | None, since: str) -> Any: ...
    def keys(self, kind: str, namespace: str, name: str) -> Mapping[str, str] | None: ...


class ClusterSource:
    """The custom resources of a cluster, in one namespace or in all. A resource that is not valid does not affect the others."""

    def __init__(
        self, cluster: ReadableCluster, namespace: str | None = None, *, name: str = "", retry_s: float = RETRY_S
    ) -> None:
        self.name = name or f"kubernetes:{cluster.address}/{namespace or '*'}"
        self._cluster, self._namespace, self._retry_s = cluster, namespace, retry_s
        self._mirrors: dict[str, tuple[str, Mirror]] = {}
        self._lock = Lock()
        self._keys: dict[tuple[str, str, str], Mapping[str, str]] = {}

    def start(self, changed: Event, stop: Event, report: Report) -> None:
        Thread(target=self._discover, args=(changed, stop, report), name="holdfast-kinds", daemon=True).start()

    def load(self) -> None:
        for kind, version in self._versions().items():
            mirror = Mirror()
            mirror.replace(self._cluster.objects(kind, version, self._namespace))
            self._mirrors[kind] = (version, mirror)

    def snapshot(self) -> SourceState | None:
        with self._lock:
            if not self._mirrors or not all(mirror.is_complete for _, mirror in self._mirrors.values()):
                return None
            objects = [
                (kind, version, item)
                for kind, (version, mirror) in self._mirrors.items()
                for item in mirror.objects.values()
            ]
            kinds = [*self._mirrors]
        self._keys.clear()  # the values of Secrets are read again with each snapshot
        resources, errors = [], {}
        for kind, version, item in objects:
            metadata = item["metadata"]
            ref = f"{kind}/{metadata.get('namespace', '')}/{metadata['name']}"
            document = Document(Place(ref, 0), {**item, "kind": kind, "apiVersion": f"{GROUP}/{version}"})
            try:
                resources.append(read_resource(document))
            except InvalidManifest as error:
                errors[ref] = error
        values = values_of(self._values)
        return SourceState(resources=resources, values=values, prune=kinds, errors=errors, is_whole=False)

    def _values(self, kind: str, namespace: str, name: str) -> Mapping[str, str] | None:
        key = (kind, namespace, name)
        if key not in self._keys:
            content = self._cluster.keys(kind, namespace, name)
            if content is None:
                return None
            self._keys[key] = content
        return self._keys[key]

    def _discover(self, changed: Event, stop: Event, report: Report) -> None:
        """Follow each kind that the cluster has, and look for new kinds from time to time."""
        retries = Retries(self._retry_s)
        while not stop.is_set():
            try:
                versions = self._versions()
            except HoldfastError as error:
                report(error)
                stop.wait(retries.next())
                continue
            for kind, version in versions.items():
                if kind not in self._mirrors:
                    with self._lock:
                        self._mirrors[kind] = (version, Mirror())
                    arguments = (kind, changed, stop, report)
                    Thread(target=self._follow, args=arguments, name=f"holdfast-{kind}", daemon=True).start()
            stop.wait(MAX_RETRY_S)

    def _versions(self) -> dict[str, str]:
        versions = self._cluster.versions()
        if not versions:
            raise NotFound(f"the cluster has no resources of {GROUP}", noun="kind", key=GROUP)
        return versions

    def _follow(self, kind: str, changed: Event, stop: Event, report: Report) -> None:
        """List the objects of a kind, then take over each change, and reconnect whenever the connection ends."""
        version, mirror = self._mirrors[kind]
        retries = Retries(self._retry_s)
        while not stop.is_set():
            started = monotonic_s()
            try:
                self._follow_once(kind, version, mirror, changed, stop)
            except Expired:
                mirror.version = None
            except (HoldfastError, WatchFailed) as error:
                report(error if isinstance(error, HoldfastError) else Unavailable(f"{kind}: {error}"))
            if monotonic_s() - started > retries.longest_s:
                retries = Retries(self._retry_s)
            stop.wait(retries.next())

    def _follow_once(self, kind: str, version: str, mirror: Mirror, changed: Event, stop: Event) -> None:
        if mirror.version is None:
            listing = self._cluster.objects(kind, version, self._namespace)
            with self._lock:
                has_changed = mirror.replace(listing)
            if has_changed:
                changed.set()
        assert mirror.version is not None
        for event in self._cluster.watch(kind, version, self._namespace, mirror.version):
            with self._lock:
                has_changed = mirror.take(event)
            if has_changed:
                changed.set()
            if stop.is_set():
                return


class Retries:
    """The seconds to wait before each attempt: twice as long each time, up to a maximum."""

    def __init__(self, first_s: float) -> None:
        self._next_s, self.longest_s = first_s, first_s * MAX_RETRY_S / RETRY_S

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        now, self._next_s = self._next_s, min(self._next_s * 2, self.longest_s)
        return now
