"""The values that manifests refer to: keys of Secrets and ConfigMaps, environment variables and files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.errors import Forbidden
from holdfast.limits import Limits

from .documents import Place

_VARIABLE, _FILE = "env:", "file:"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_KEY = re.compile(r"(?!\.\.?\Z)[-._a-zA-Z0-9]+")


class Reference(Struct, frozen=True):
    """A key of a Secret or of a ConfigMap. Without a key, its only key or, if ``whole``, all of them as a JSON object."""

    kind: str
    namespace: str
    name: str
    key: str
    place: Place
    path: str
    whole: bool = False

    def error(self, problem: str) -> Exception:
        """Return the error for a reference whose value is not available."""
        return self.place.error(f"{self.kind} {self.namespace}/{self.name}: {problem}", f"spec.{self.path}")


Values = Callable[[Reference], str]
"""Returns the value of a reference, or raises ``InvalidManifest``."""
Keys = Callable[[str, str, str], Mapping[str, str] | None]
"""Returns the keys of a Secret or ConfigMap by its kind, namespace and name; ``None`` if it does not exist."""


def reference(
    kind: str, namespace: str, name: str, key: str, place: Place, path: str, *, whole: bool = False
) -> Reference:
    """Return a reference; the name may contain the namespace, as in ``namespace/name``."""
    if not name.startswith((_VARIABLE, _FILE)):
        other, slash, rest = name.rpartition("/")
        namespace, name = (other, rest) if slash else (namespace, name)
    return Reference(kind, namespace, name, key, place, path, whole)


def values_of(keys: Keys) -> Values:
    """Return a function that finds values in Secrets and ConfigMaps."""

    def value(reference: Reference) -> str:
        if not (_NAME.fullmatch(reference.namespace) and _NAME.fullmatch(reference.name)):
            raise reference.error("this is not a name in Kubernetes")
        if reference.key and not _KEY.fullmatch(reference.key):
            raise reference.error(f"{reference.key!r} is not a valid key")
        try:
            content = keys(reference.kind, reference.namespace, reference.name)
        except Forbidden as error:
            raise reference.error(str(error)) from None
        if content is None:
            raise reference.error("it does not exist")
        return _selected(reference, content)

    return value


def local_values(folder: Path | None, limits: Limits) -> Values:
    """Return a function that finds values on this machine.

    A name such as ``env:OPENAI_API_KEY`` refers to an environment variable and ``file:keys/openai`` to a file, relative to the
    manifest. Any other name is a folder below ``folder``, with a file for each key, as Kubernetes mounts a Secret.
    """

    def keys(kind: str, namespace: str, name: str) -> Mapping[str, str] | None:
        assert folder is not None
        places = [path for path in (folder / namespace / name, folder / name) if path.is_dir()]
        if not places:
            return None
        return {path.name: _read(path, limits) for path in sorted(places[0].iterdir()) if path.is_file()}

    in_folder = values_of(keys)

    def value(reference: Reference) -> str:
        if reference.name.startswith(_VARIABLE):
            variable = os.environ.get(reference.name.removeprefix(_VARIABLE))
            if not variable:
                raise reference.error("the environment variable is not set, or empty")
            return variable
        if reference.name.startswith(_FILE):
            path = Path(reference.place.file).parent / reference.name.removeprefix(_FILE)
            try:
                return _read(path, limits)
            except (OSError, ValueError) as error:
                raise reference.error(f"{path} cannot be read: {_reason(error)}") from None
        if folder is None:
            raise reference.error("name env:VARIABLE or file:PATH instead, or give the folder of the Secrets")
        try:
            return in_folder(reference)
        except (OSError, UnicodeDecodeError) as error:
            raise reference.error(f"{folder} cannot be read: {_reason(error)}") from None

    return value


def _selected(reference: Reference, content: Mapping[str, str]) -> str:
    if reference.key:
        if reference.key not in content:
            raise reference.error(f"it has no key {reference.key!r}")
        return content[reference.key]
    if reference.whole:
        return json.dumps(dict(sorted(content.items())))
    if len(content) != 1:
        raise reference.error(f"it has {len(content)} keys, and none is named")
    return next(iter(content.values()))


def _read(path: Path, limits: Limits) -> str:
    """Return the content of a file without the newline at its end."""
    with path.open("rb") as opened:
        data = opened.read(limits.system_bytes + 1)
    limits.check("system_bytes", len(data), str(path))
    return data.decode().removesuffix("\n").removesuffix("\r")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "it is not UTF-8"
