"""Manifests are read from YAML and JSON as plain values; invalid ones are one typed error that names its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from holdfast.declared import yaml_loader
from holdfast.declared.documents import read_documents
from holdfast.errors import InvalidManifest, LimitExceeded
from holdfast.limits import Limits
from tests.declared.manifests import LIMITS, parse

SECRET = "s3cret-value"


@pytest.fixture(params=["C", "Python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the two parsers of the library."""
    if request.param == "Python":
        monkeypatch.setattr(yaml_loader, "_LOADER", yaml.SafeLoader)


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\nb: -0x1f\nc: 010\nd: 0o17\ne: 1_000\nf: 0b11", {"a": 1, "b": -31, "c": 8, "d": 15, "e": 1000, "f": 3}),
        ("a: 1.5\nb: 1e3\nc: .5\nd: 1.", {"a": 1.5, "b": 1000.0, "c": 0.5, "d": 1.0}),
        ("a: yes\nb: Off\nc: true\nd: FALSE", {"a": True, "b": False, "c": True, "d": False}),
        ("a: ~\nb:\nc: null\nd: ''", {"a": None, "b": None, "c": None, "d": ""}),
        ("a: 2024-01-01\nb: 12:30\nc: y\nd: 1.2.3", {"a": "2024-01-01", "b": "12:30", "c": "y", "d": "1.2.3"}),
        ("a: '1'\nb: \"true\"\nc: |\n  null\nd: !!str 1", {"a": "1", "b": "true", "c": "null\n", "d": "1"}),
        ("1: a\ny: b\nnull: c", {"1": "a", "y": "b", "null": "c"}),
        ("a: &x [1, {b: 2}]\nc: *x", {"a": [1, {"b": 2}], "c": [1, {"b": 2}]}),
        ("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}", {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}),
        ("a: &a {x: 1}\nb: &b {x: 2, z: 2}\nc: {<<: [*a, *b]}", {"a": {"x": 1}, "b": {"x": 2, "z": 2}, "c": {"x": 1, "z": 2}}),
        ("a: !!int '7'", {"a": 7}),
        (f"a: {'9' * 401}", {"a": "9" * 401}),
    ],
)  # fmt: skip
def test_plain_values(text: str, value: Any) -> None:
    assert parse(text) == [value]


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    "text",
    [
        f"a: {SECRET}\na: 2", f"a: [{SECRET}", f"\ta: {SECRET}", f"a: *{SECRET}", "a: &x [*x]", "? [a]\n: b",
        f"a: !!python/object/apply:os.system [{SECRET}]", "a: !!binary aGk=", "a: !!set {x}", "a: !!int x", "a: !own x",
        "a: .nan", "a: -.inf", "a: 1e999", f"a: {2**63}", "a: {<<: 1}", "a: &a [1]\nb: {<<: *a}", "a: \x00", b"a: \xff",
        "? *a\n: b", "- a\nb: c", "a: 'x", "%YAML 9.9\n---\na: 1",
    ],
)  # fmt: skip
def test_invalid_yaml_is_one_typed_error_without_values(text: str | bytes) -> None:
    with pytest.raises(InvalidManifest) as caught:
        parse(text)
    assert (caught.value.file, caught.value.document) == ("test.yaml", 1)
    assert SECRET not in str(caught.value).replace(f"*{SECRET}", "")


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 100_000,
        "- " * 100_000,
        "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)),
        "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 60)),
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 200)),
    ],
    ids=["lists", "mappings", "nested lists", "aliases", "merges", "deep aliases"],
)
def test_hostile_yaml_is_refused(text: str) -> None:
    with pytest.raises(InvalidManifest):
        parse(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(), part, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(JSON.filter(lambda value: value is not None))
def test_what_another_library_writes_as_yaml_is_read_as_it_was(value: Any) -> None:
    try:
        text = yaml.dump(value, Dumper=yaml.SafeDumper, allow_unicode=False).encode()
    except yaml.YAMLError:
        return
    if b"\\ud" in text.lower() or b"<<" in text:
        return  # unpaired surrogates cannot be read from YAML, and << is the merge key
    assert parse(text) == [value]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": Infinity}', '{"a": 1e999}', '{"a": 9223372036854775808}',
        '{"a": ' + "9" * 5000 + "}", "[" * 100_000, "[" * 101 + "]" * 101, '{"a"', b"\xff",
    ],
)  # fmt: skip
def test_invalid_json_is_one_typed_error(text: str | bytes) -> None:
    with pytest.raises(InvalidManifest) as caught:
        parse(text, "test.json")
    assert (caught.value.file, caught.value.document) == ("test.json", 1)


@given(JSON.filter(lambda value: value is not None))
def test_json_is_read_as_it_was(value: Any) -> None:
    import json

    assert parse(json.dumps(value), "test.json") == [value]


def test_a_file_has_several_documents_and_each_knows_its_number() -> None:
    from holdfast.declared.documents import parse_documents

    text = b"a: 1\n---\n# empty\n---\nb: 2\n---\napiVersion: v1\nkind: List\nitems: [{c: 3}, {d: 4}]\n"
    found = parse_documents("test.yaml", text, LIMITS)
    assert [(item.place.document, item.place.path, item.value) for item in found] == [
        (1, "", {"a": 1}),
        (3, "", {"b": 2}),
        (4, "items[0]", {"c": 3}),
        (4, "items[1]", {"d": 4}),
    ]
    assert parse("") == parse("---\n---\n") == parse("", "test.json") == []
    with pytest.raises(InvalidManifest) as caught:
        parse("a: 1\n---\nb: [")
    assert caught.value.document == 2
    for wrong, path in (("items: 7", "items"), ("item: []", "item")):
        with pytest.raises(InvalidManifest) as caught:
            parse(f"apiVersion: v1\nkind: List\n{wrong}")
        assert caught.value.path == path


def test_a_folder_is_read_in_the_order_of_names_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.yaml", "a/z.yml", "a.json", ".hidden.yaml", "..data/x.yaml", "notes.txt", "a/.git/y.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"name": "{name}"}}')
    (tmp_path / "linked.yaml").symlink_to(tmp_path / "..data" / "x.yaml")
    found = [document.value["name"] for document in read_documents(tmp_path, LIMITS)]
    assert found == ["a/z.yml", "a.json", "b.yaml", "..data/x.yaml"]
    assert [item.value["name"] for item in read_documents(tmp_path / "notes.txt", LIMITS)] == ["notes.txt"]


def test_a_folder_without_manifests_is_an_error_and_an_empty_manifest_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest) as caught:
        read_documents(tmp_path, LIMITS)
    assert caught.value.file == str(tmp_path)
    (tmp_path / "empty.yaml").touch()
    assert read_documents(tmp_path, LIMITS) == []


def test_too_much_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LimitExceeded) as caught:
        parse("a: " + "x" * 100, limits=Limits(manifest_bytes=50))
    assert caught.value.limit == "manifest_bytes"
    (tmp_path / "large.yaml").write_bytes(b"a: 1\n---\n" * 4)
    with pytest.raises(LimitExceeded) as caught:
        read_documents(tmp_path, Limits(batch_rows=3))
    assert caught.value.limit == "batch_rows"
    with pytest.raises(InvalidManifest):
        parse("[1, 2, 3]", limits=Limits(manifest_values=3))
    assert parse("[1, 2, 3]", limits=Limits(manifest_values=4)) == [[1, 2, 3]]
