"""JSON Schema: the keywords that users expect, and schemas that would take too long."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import InvalidInput, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.tools.json_schemas import DRAFTS, check_instance, check_schema, is_found
from tests.errors import raises

KEYWORDS: list[tuple[dict[str, Any], Any, Any]] = [
    ({"enum": ["a", 1]}, 1, True),
    ({"const": {"a": 1}}, {"a": 1}, {"a": 2}),
    ({"type": ["integer", "null"]}, 1.0, 1.5),
    ({"minimum": 1, "exclusiveMaximum": 3, "multipleOf": 0.5}, 2.5, 3),
    ({"minLength": 2, "maxLength": 3, "pattern": "^a"}, "a\U0001f600", "abcd"),
    ({"items": {"type": "string"}, "uniqueItems": True, "maxItems": 2}, ["a", "b"], ["a", "a"]),
    ({"prefixItems": [{"type": "string"}], "items": False}, ["a"], ["a", "b"]),
    ({"contains": {"const": 1}, "minContains": 2}, [1, 1], [1, 2]),
    ({"required": ["a"], "additionalProperties": False, "patternProperties": {"^a": {}}}, {"a": 1, "ab": 1}, {"a": 1, "b": 1}),
    ({"propertyNames": {"maxLength": 1}, "maxProperties": 1}, {"a": 1}, {"ab": 1}),
    ({"dependentRequired": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1, "b": 1}, {"a": 1}),
    ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 1, 3),
    ({"anyOf": [{"type": "string"}, {"minimum": 1}]}, "a", 0),
    ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, 2, 6),
    ({"not": {"type": "string"}}, 1, "a"),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}, {"c": 1}, {"a": 1}),
    ({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"), KEYWORDS, ids=lambda value: next(iter(value)) if isinstance(value, dict) else ""
)
def test_a_keyword_has_its_meaning(schema: dict[str, Any], valid: Any, invalid: Any) -> None:
    within = {"$defs": {"a/b": schema}, "properties": {"x": {"$ref": "#/$defs/a~1b"}}}
    check_schema(within, "parameters", Limits())
    check_instance(within, {"x": valid}, "arguments")
    with pytest.raises(InvalidInput):
        check_instance(within, {"x": invalid}, "arguments")


@pytest.mark.parametrize("draft", [*DRAFTS, f"{DRAFTS[0]}#"])
def test_older_drafts_are_accepted(draft: str) -> None:
    schema = {"$schema": draft, "$id": "https://example.com/tool", "definitions": {"a": {"type": "string"}}}
    schema |= {"properties": {"a": {"$ref": "#/definitions/a"}}}
    check_schema(schema, "parameters", Limits())
    with raises(InvalidInput, field="arguments.a"):
        check_instance(schema, {"a": 1}, "arguments")


def _doubling(levels: int) -> dict[str, Any]:
    steps = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n - 1}"}] * 2} for n in range(1, levels + 1)}
    return {"$defs": {"a0": {}, **steps}, "properties": {"x": {"$ref": f"#/$defs/a{levels}"}}}


def test_a_schema_that_doubles_with_each_reference_is_refused() -> None:
    check_schema(_doubling(5), "parameters", Limits())
    for levels in (10, 200):
        with raises(LimitExceeded, field="parameters", limit="schema_nodes"):
            check_schema(_doubling(levels), "parameters", Limits())


RECURSIVE: list[dict[str, Any]] = [
    {"properties": {"a": {"$ref": "#"}}},
    {"properties": {"a": {"$ref": "#/properties/a"}}},
    {"properties": {"a": {"items": {"$ref": "#/properties/a"}}}},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"items": {"$ref": "#/$defs/%61"}}}},
    {"$dynamicAnchor": "node", "properties": {"a": {"$dynamicRef": "#node"}}},
    {"$schema": DRAFTS[1], "properties": {"a": {"$recursiveRef": "#"}}},
    {"properties": {"a": {"$id": "https://example.com/a", "items": {"$ref": "#"}}}},
    {"$defs": {"a": {"$anchor": "here", "items": {"$ref": "#here"}}}},
]


@pytest.mark.parametrize("schema", RECURSIVE, ids=str)
def test_a_recursive_schema_is_refused(schema: dict[str, Any]) -> None:
    with raises(InvalidInput, field="parameters"):
        check_schema(schema, "parameters", Limits())


@pytest.mark.parametrize(
    "reference",
    ["#/allOf/0000000000001", "#/allOf/" + "9" * 5_000, "#/allOf/1", "#/allOf/x", "#/missing/x"],
)
def test_a_reference_to_a_missing_part_is_refused(reference: str) -> None:
    with raises(InvalidInput, field="parameters"):
        check_schema({"allOf": [{}], "properties": {"a": {"$ref": reference}}}, "parameters", Limits())


@pytest.mark.parametrize(
    "reference", ["http://127.0.0.1:1/a", "file:///etc/passwd", "other.json", "https://example.com/a#/b", ""]
)
def test_no_other_document_is_read(reference: str) -> None:
    with raises(InvalidInput, field="parameters"):
        check_schema({"properties": {"a": {"$ref": reference}}}, "parameters", Limits())


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|aa)*b", "(.*){30}x", "a*" * 50 + "b"])
def test_a_pattern_takes_time_in_proportion_to_the_text(pattern: str) -> None:
    schema = {
        "properties": {"a": {"pattern": pattern}},
        "patternProperties": {pattern: {}},
        "additionalProperties": True,
    }
    check_schema(schema, "parameters", Limits())
    with raises(InvalidInput, field="arguments.a"):
        check_instance(schema, {"a": "a" * 100_000 + "!"}, "arguments")
    assert not is_found(pattern, "a" * 100_000 + "!")


def test_a_long_value_is_shortened_in_an_error() -> None:
    with pytest.raises(InvalidInput) as refused:
        check_instance({"properties": {"a": {"type": "integer"}}}, {"a": "x" * 100_000}, "arguments")
    assert len(str(refused.value)) < 1_000
