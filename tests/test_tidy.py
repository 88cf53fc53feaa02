"""The style rules of this project. They are defined in ``tests/tidy.py``; here each is also shown to catch a violation."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest

from tests import tidy
from tests.tidy import PACKAGE, ROOT, Source

SOURCES = tidy.sources("src")
OTHERS = tidy.sources("tests", "bench", "examples", "tools")


def expect_none(violations: Iterable[str]) -> None:
    lines = list(violations)
    if lines:
        pytest.fail("\n".join(["", *lines]), pytrace=False)


def expect_none_of(rule: tidy.Rule, sources: Iterable[Source]) -> None:
    expect_none(line for source in sources for line in rule(source))


@pytest.mark.parametrize("rule", tidy.RULES, ids=lambda rule: rule.__name__)
def test_package(rule: tidy.Rule) -> None:
    expect_none_of(rule, SOURCES)


def test_tests_and_tools_have_short_functions_and_telling_names() -> None:
    expect_none_of(tidy.functions_are_short, OTHERS)
    expect_none_of(tidy.module_names_say_something, OTHERS)


def test_public_names_have_docstrings() -> None:
    rule = partial(tidy.public_names_have_docstrings, protocols=tidy.protocols(SOURCES))
    expect_none_of(rule, tidy.public_modules(SOURCES))


def test_public_names_are_listed_in_order() -> None:
    expect_none_of(tidy.names_of_all_are_complete, [source for source in SOURCES if source.module == "holdfast"])


def test_every_module_is_used() -> None:
    expect_none(tidy.unused_modules(SOURCES, OTHERS))


def test_no_two_public_classes_have_one_name() -> None:
    expect_none(tidy.names_of_two_classes(SOURCES))


def test_second_class_of_a_name_is_caught() -> None:
    one, other = Source(f"{PACKAGE}/one.py", "class Plan: pass"), Source(f"{PACKAGE}/other.py", "class Plan: pass")
    assert [line.split(":")[0] for line in tidy.names_of_two_classes([one, other])] == [other.path]


def test_sql_names_no_table_of_a_layer_above() -> None:
    expect_none(tidy.tables_of_layers_above(tidy.store_layers()))


def test_table_of_a_layer_above_is_caught() -> None:
    actual = [*tidy.tables_of_layers_above([*reversed(tidy.store_layers())])]
    assert "workspace/squash.sql names objects, a table of objects: objects is not below workspace" in actual


def test_exemptions_from_the_rule_about_sql_are_still_needed() -> None:
    needed = {source.path for source in SOURCES if any(tidy.formatted_sql(source))}
    assert sorted(tidy.FORMATTED_SQL_ALLOWED.keys() - needed) == []


def test_tracked_files_hold_no_trace_of_a_machine() -> None:
    actual: list[str] = []
    for path in tidy.tracked_files():
        if path.suffix not in {".png", ".svg", ".gz", ".db"}:
            actual += tidy.machine_traces(path.relative_to(ROOT).as_posix(), path.read_text("utf-8", errors="replace"))
    expect_none(actual)


def test_documents_have_one_title() -> None:
    documents = [path for path in tidy.tracked_files() if path.suffix == ".md"]
    assert documents
    expect_none(line for path in documents for line in tidy.titles(path.name, path.read_text("utf-8")))


# What follows shows that the rules above can fail.

STORE = f"{PACKAGE}/stores/planted.py"
FILLER = "    pass\n"

PLANTED: list[tuple[tidy.Rule, str, str]] = [
    (tidy.functions_are_short, STORE, "def long():\n" + FILLER * tidy.FUNCTION_LINES),
    (tidy.functions_are_short, STORE, "class A:\n    async def long(self):\n" + f"    {FILLER}" * tidy.FUNCTION_LINES),
    (tidy.modules_are_short, STORE, "x = 1\n" * (tidy.MODULE_LINES + 1)),
    (tidy.modules_are_short, f"{PACKAGE}/drivers/planted.py", "x = 1\n" * (tidy.DRIVER_LINES + 1)),
    (tidy.module_names_say_something, f"{PACKAGE}/utils.py", ""),
    (tidy.module_names_say_something, f"{PACKAGE}/helpers/__init__.py", ""),
    (tidy.module_names_say_something, f"{PACKAGE}/text_utils.py", ""),
    (tidy.module_names_say_something, f"{PACKAGE}/session_manager.py", ""),
    (tidy.banned_names_are_absent, STORE, "import pickle"),
    (tidy.banned_names_are_absent, STORE, "from pickle import loads"),
    (tidy.banned_names_are_absent, STORE, "eval('1')"),
    (tidy.banned_names_are_absent, STORE, "exec('1')"),
    (tidy.banned_names_are_absent, STORE, "archive.extractall(path)"),
    (tidy.banned_names_are_absent, STORE, "datetime.now(UTC)"),
    (tidy.banned_names_are_absent, STORE, "datetime.datetime.utcnow()"),
    (tidy.banned_names_are_absent, STORE, "time.time()"),
    (tidy.banned_names_are_absent, f"{PACKAGE}/ids.py", "time.time_ns()"),
    (tidy.banned_names_are_absent, STORE, "uuid.uuid4()"),
    (tidy.banned_names_are_absent, STORE, "import random"),
    (tidy.banned_names_are_absent, f"{PACKAGE}/clock.py", "from random import Random"),
    (tidy.digests_are_compared_in_constant_time, STORE, "if digest == other: pass"),
    (tidy.digests_are_compared_in_constant_time, STORE, "ok = given != hasher.hexdigest()"),
    (tidy.digests_are_compared_in_constant_time, STORE, "ok = row.key_digest == given"),
    (tidy.sql_is_never_formatted, STORE, "connection.execute(f'SELECT {x}')"),
    (tidy.sql_is_never_formatted, STORE, "connection.fetch('SELECT %s' % x, ())"),
    (tidy.sql_is_never_formatted, STORE, "connection.fetch('SELECT ' + x, ())"),
    (tidy.sql_is_never_formatted, STORE, "connection.many('SELECT {}'.format(x), ())"),
    (tidy.stores_and_core_have_no_colour, STORE, "import asyncio"),
    (tidy.stores_and_core_have_no_colour, f"{PACKAGE}/core/planted.py", "from threading import Lock"),
    (tidy.public_names_have_docstrings, STORE, '"""Why."""\ndef public(): pass'),
    (tidy.public_names_have_docstrings, STORE, '"""Why."""\nclass Public: pass'),
    (tidy.public_names_have_docstrings, STORE, '"""Why."""\nclass A:\n    "Why."\n    async def public(self): pass'),
    (tidy.public_names_have_docstrings, STORE, "def _private(): pass"),
    (tidy.public_names_have_docstrings, f"{PACKAGE}/testing/a.py", '"""Why."""\nclass A: pass'),
    (tidy.names_of_all_are_complete, STORE, "from .a import B, C\n__all__ = ['B']"),
    (tidy.names_of_all_are_complete, STORE, "from .a import B\n__all__ = ['B', 'C']"),
    (tidy.names_of_all_are_complete, STORE, "from .a import B, C\n__all__ = ['C', 'B']"),
]

HARMLESS: list[tuple[tidy.Rule, str, str]] = [
    (tidy.functions_are_short, STORE, "def short():\n" + FILLER * (tidy.FUNCTION_LINES - 1)),
    (tidy.modules_are_short, STORE, "x = 1\n" * tidy.MODULE_LINES),
    (tidy.module_names_say_something, f"{PACKAGE}/baseline.py", ""),
    (tidy.banned_names_are_absent, f"{PACKAGE}/clock.py", "time.time_ns(); datetime.now(UTC)"),
    (tidy.banned_names_are_absent, f"{PACKAGE}/ids.py", "from random import Random\nuuid.uuid4()"),
    (tidy.banned_names_are_absent, STORE, "clock.now_us(); run.evaluate(); datetime.fromtimestamp(1, UTC)"),
    (tidy.digests_are_compared_in_constant_time, STORE, "ok = hmac.compare_digest(digest, other) and machine == 1"),
    (tidy.sql_is_never_formatted, STORE, "connection.fetch('SELECT $1', (f'{x}',)); log.info(f'{x}')"),
    (tidy.stores_and_core_have_no_colour, f"{PACKAGE}/engines/planted.py", "import asyncio"),
    (
        tidy.public_names_have_docstrings,
        STORE,
        '"""Why."""\ndef _private(): pass\nclass _Hidden:\n    def method(self): pass',
    ),
    (
        tidy.public_names_have_docstrings,
        STORE,
        '"""Why."""\nclass A:\n    "Why."\n    def m(self): "Why."\nclass B(A):\n    "Why."\n    def m(self): pass',
    ),
    (
        tidy.public_names_have_docstrings,
        f"{PACKAGE}/testing/a.py",
        '"""Why."""\nclass A:\n    "Why."\n    def m(self): pass',
    ),
    (tidy.names_of_all_are_complete, STORE, "from .a import B, _c\n__all__ = ['B']"),
]


def store_with(methods: int) -> Source:
    body = "".join(f"    async def m{n}(self): pass\n" for n in range(methods))
    return Source(STORE, f"class AsyncThings(TenantStore):\n    def _private(self): pass\n{body}")


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED)
def test_rule_catches_a_planted_violation(rule: tidy.Rule, path: str, text: str) -> None:
    actual = list(rule(Source(path, text)))
    assert actual
    assert all(line.startswith(path) for line in actual)


@pytest.mark.parametrize(("rule", "path", "text"), HARMLESS)
def test_rule_lets_the_harmless_pass(rule: tidy.Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text))) == []


def test_every_rule_has_a_planted_violation() -> None:
    planted = {rule for rule, _, _ in PLANTED} | {tidy.stores_are_small}
    assert {*tidy.RULES, tidy.public_names_have_docstrings, tidy.names_of_all_are_complete} <= planted


def test_store_with_too_many_methods_is_caught() -> None:
    assert list(tidy.stores_are_small(store_with(tidy.STORE_METHODS))) == []
    assert list(tidy.stores_are_small(store_with(tidy.STORE_METHODS + 1)))


def test_method_that_fulfils_a_documented_protocol_needs_no_docstring_of_its_own() -> None:
    protocol = Source(f"{PACKAGE}/p.py", 'class P(Protocol):\n    def m(self): "Why."\n    def n(self): "Why."')
    initial = tidy.protocols([protocol])
    whole = Source(STORE, '"""Why."""\nclass A:\n    "Why."\n    def m(self): pass\n    def n(self): pass')
    part = Source(STORE, '"""Why."""\nclass A:\n    "Why."\n    def m(self): pass')
    assert list(tidy.public_names_have_docstrings(whole, initial)) == []
    assert len(list(tidy.public_names_have_docstrings(part, initial))) == 1


def test_module_that_is_never_imported_is_caught() -> None:
    used = Source(f"{PACKAGE}/used.py", "")
    user = Source(f"{PACKAGE}/cli/__init__.py", "from .. import used\nfrom ..stores.kept import x")
    kept = Source(f"{PACKAGE}/stores/kept.py", "")
    lonely = Source(f"{PACKAGE}/stores/lonely.py", "from . import lonely")
    assert [line.split(":")[0] for line in tidy.unused_modules([used, user, kept, lonely], [])] == [lonely.path]


def test_module_for_tests_may_be_used_by_tests_alone() -> None:
    shipped = Source(f"{PACKAGE}/testing/shipped.py", "")
    ours = Source(f"{PACKAGE}/stores/ours.py", "")
    test = Source("tests/test_x.py", "from holdfast.testing import shipped\nfrom holdfast.stores import ours")
    assert [line.split(":")[0] for line in tidy.unused_modules([shipped, ours], [test])] == [ours.path]


def test_drivers_named_in_the_table_are_used() -> None:
    table = Source(f"{PACKAGE}/drivers/join.py", "TABLE = {'x.Connection': 'known'}")
    initial, unknown = Source(f"{PACKAGE}/drivers/known.py", ""), Source(f"{PACKAGE}/drivers/unknown.py", "")
    user = Source(f"{PACKAGE}/handles.py", "from .drivers import join")
    root = Source(f"{PACKAGE}/__init__.py", "from .handles import Holdfast")
    actual = list(tidy.unused_modules([root, user, table, initial, unknown], []))
    assert [line.split(":")[0] for line in actual] == [unknown.path]


@pytest.mark.parametrize(
    "text", ["/ro" + "ot/.cache", "see /wo" + "rk/x", "/home/" + "ada/y", "py" + "pi.org", "--index" + "-url x"]
)
def test_trace_of_a_machine_is_caught(text: str) -> None:
    assert list(tidy.machine_traces("a.md", f"first\n{text}")) != []


@pytest.mark.parametrize(
    "text", ["src/wo" + "rk/x", "https://example.com/ho" + "me/ada/", "~/.cache/holdfast", "/t" + "mp/x", "$HOME/x"]
)
def test_harmless_path_is_no_trace(text: str) -> None:
    assert list(tidy.machine_traces("a.md", text)) == []


@pytest.mark.parametrize(
    ("text", "right"),
    [("# One\n## Two", True), ("no title", False), ("# One\n# Two", False), ("# One\n```\n# a comment\n```", True)],
)
def test_titles_are_counted_outside_of_code(text: str, right: bool) -> None:
    assert (list(tidy.titles("a.md", text)) == []) is right
