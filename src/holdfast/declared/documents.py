"""Reading manifests: files and folders of YAML or JSON as documents, each with the place it comes from.

Only plain JSON values come out, in which no key occurs twice and every number is finite.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.errors import InvalidManifest
from holdfast.limits import Limits

from . import json_loader

SUFFIXES = (".yaml", ".yml", ".json")
"""Endings of the names of files that are manifests."""


class Place(Struct, frozen=True):
    """Where a document comes from."""

    file: str
    document: int
    """Its number in the file, from 1; 0 if it is not part of a file."""
    path: str = ""
    """The path within the document, such as ``items[2]``; empty for the document itself."""

    def error(self, message: str, path: str = "") -> InvalidManifest:
        """Return the error for a value of the document."""
        path = ".".join(part for part in (self.path, path) if part)
        parts = [self.file, f"document {self.document}" if self.document else "", path]
        where = ", ".join(part for part in parts if part)
        return InvalidManifest(f"{where}: {message}", file=self.file, document=self.document, path=path)


class Document(Struct, frozen=True):
    """One document: any JSON value."""

    place: Place
    value: Any

    def __repr__(self) -> str:
        return f"Document({self.place!r})"  # the value can contain a secret


def manifest_files(path: Path) -> list[Path]:
    """Return the manifests at a path: the file itself, or all files below the folder, without hidden ones.

    Raises:
        InvalidManifest: the folder has no manifest.
        OSError: the path does not exist.
    """
    if not path.is_dir():
        return [path]
    files = sorted(_files_below(path))
    if not files:
        endings = ", ".join(SUFFIXES)
        raise InvalidManifest(
            f"{path}: the folder has no manifest ({endings}). To declare no resources at all, add an empty file",
            file=str(path),
        )
    return files


def read_documents(path: Path, limits: Limits) -> list[Document]:
    """Return the documents of a file, or of all files of a folder, in the order of the files' names.

    Raises:
        InvalidManifest: a file is not valid, or the folder has no manifest.
        LimitExceeded: a file or the number of documents is too large.
        OSError: a file cannot be read.
    """
    documents: list[Document] = []
    for file in manifest_files(path):
        with file.open("rb") as opened:
            data = opened.read(limits.manifest_bytes + 1)
        documents += parse_documents(str(file), data, limits)
        limits.check("batch_rows", len(documents), str(path))
    return documents


def parse_documents(file: str, data: bytes, limits: Limits) -> list[Document]:
    """Return the documents in the content of a file; empty ones are left out.

    Raises:
        InvalidManifest: the content is neither valid YAML nor valid JSON.
        LimitExceeded: it is too large.
    """
    limits.check("manifest_bytes", len(data), file)
    documents = []
    for number, value in enumerate(_parse(file, data, limits), 1):
        if value is None:
            continue
        documents += _flatten(Document(Place(file, number), value))
    return documents


def _files_below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(root, name) for name in names if name.endswith(SUFFIXES) and not name.startswith("."))


def _flatten(document: Document) -> list[Document]:
    """Return the items of a Kubernetes ``List``, or the document itself."""
    value, place = document.value, document.place
    if not (isinstance(value, dict) and value.get("kind") == "List" and value.get("apiVersion") == "v1"):
        return [document]
    items = value.get("items", [])
    if not isinstance(items, list):
        raise place.error("items of a List must be a list", "items")
    unknown = sorted(set(value) - {"apiVersion", "kind", "metadata", "items"})
    if unknown:
        raise place.error(f"a List has no field {unknown[0]!r}", unknown[0])
    return [
        Document(Place(place.file, place.document, f"items[{index}]"), item)
        for index, item in enumerate(items)
    ]  # fmt: skip


def _parse(file: str, data: bytes, limits: Limits) -> Iterator[Any]:
    if file.endswith(".json"):
        load_all = json_loader.load_all
    else:
        from .yaml_loader import load_all  # imported here because JSON does not need the library
    documents = 0
    try:
        for value in load_all(data, limits):
            documents += 1
            yield value
    except json_loader.SyntaxProblem as error:
        raise Place(file, documents + 1).error(str(error)) from None
