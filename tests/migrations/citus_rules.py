"""What Citus refuses in a statement, or executes on every machine although it concerns one tenant.

No cluster is needed to see it: the shape of a statement says it, and PostgreSQL's own catalogue says which functions depend on
the connection. Each rule was met with Citus 14.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg

from tests.migrations.sharding import GLOBAL
from tests.migrations.statements import Named, tables_in

UNDISTRIBUTED = {
    "append",
    "append_one",
    "commit_all",
    "commit_bare",
    "commit_one_bare",
    "intend_all",
    "put_if_unchanged",
    "put_writes_if_unchanged",
}
"""Statements that make several changes in one round trip, and are sent only where the tables are not distributed."""

_NOISE = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_TARGET = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM)\s+([a-z_]+)")
_UPDATES = re.compile(r"(?<!DO )(?<!KEY )(?<!FOR )\bUPDATE\s+[a-z_]+")
_LOCKS = re.compile(r"\bFOR (?:NO KEY )?(?:UPDATE|SHARE)\b")
_SUBQUERY = re.compile(r"\(\s*SELECT\b")


def refused(statement: Named, connection: psycopg.Connection[Any]) -> Iterator[str]:
    """Return the reasons why Citus cannot execute a statement on the one machine of its tenant."""
    text = _NOISE.sub("''", statement.text)
    for why in [*_refused_insert(text), *_refused_ctes(text), *_refused_targets(text)]:
        yield f"{statement.name} {why}"
    if _UPDATES.search(text):
        for function in sorted(_stable_functions_of_columns(statement, connection)):
            yield f"{statement.name} calls {function} with a column in an UPDATE: its result depends on the connection"


def _refused_insert(text: str) -> Iterator[str]:
    for insert in re.finditer(r"\bINSERT INTO\s+([a-z_]+)", text):
        if insert[1] in GLOBAL:
            continue
        rest = text[insert.end() :]
        values = re.match(r"\s*\([^()]*\)\s*VALUES\s*", rest)
        if values and _SUBQUERY.search(_inside(rest, values.end())):
            yield "has a subquery in VALUES"
        sets = re.search(r"\bDO UPDATE SET\b(.*?)(?:\bRETURNING\b|$)", rest, re.DOTALL)
        if sets and _SUBQUERY.search(sets[1]):
            yield "has a subquery in ON CONFLICT DO UPDATE"
        # A tenant that comes from a table's own column stays on its machine; one that comes as a parameter is copied there.
        if re.match(r"\s*\([^()]*\)\s*(?:WITH\b.*?\)\s*)?SELECT\s+:", rest, re.DOTALL) and not re.search(
            r"\bRETURNING\b", rest
        ):
            yield "inserts selected rows without RETURNING, so that Citus copies it and hides which constraint is violated"


def _refused_ctes(text: str) -> Iterator[str]:
    for cte in re.finditer(r"\bAS\s*(?:NOT\s+)?(?:MATERIALIZED\s*)?\((?=\s*[A-Z])", text):
        body = _inside(text, cte.end() - 1)
        if _LOCKS.search(body):
            yield "locks rows in a CTE"
        if re.match(r"\s*(?:INSERT|UPDATE|DELETE)\b", body):
            yield "makes a change in a CTE, which Citus executes on every machine"


def _refused_targets(text: str) -> Iterator[str]:
    targets = set(_TARGET.findall(text))
    if targets & GLOBAL and tables_in(text) - GLOBAL:
        yield f"changes {', '.join(sorted(targets & GLOBAL))} and reads a table that is distributed"


def _inside(text: str, opening: int) -> str:
    """Return the text between a parenthesis and the one that closes it."""
    depth = 0
    for place in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return text[opening + 1 : place]
    return text[opening + 1 :]


def _stable_functions_of_columns(statement: Named, connection: psycopg.Connection[Any]) -> set[str]:
    """Return the stable functions that an UPDATE calls with a column, outside of subqueries."""
    with connection.transaction(force_rollback=True):
        connection.execute(f"PREPARE asked AS {statement.sql}".encode())
        ((types,),) = connection.execute(
            "SELECT array_to_string(parameter_types, ', ') FROM pg_prepared_statements WHERE name = 'asked'"
        ).fetchall()
        connection.execute("DEALLOCATE asked")
        body = f"CREATE FUNCTION asked({types}) RETURNS SETOF record BEGIN ATOMIC {statement.sql}; SELECT 1, 2; END"
        connection.execute(body.encode())
        ((tree,),) = connection.execute("SELECT prosqlbody::text FROM pg_proc WHERE proname = 'asked'").fetchall()
        called = {number for query in _updates(tree) for number in _called_with_columns(query)}
        rows = connection.execute(
            "SELECT oid::regprocedure::text FROM pg_proc WHERE provolatile = 's' AND oid = ANY(%s)", (list(called),)
        )
        return {name for (name,) in rows} | {
            name
            for (name,) in connection.execute(
                "SELECT 'cast to ' || format_type(t.oid, NULL) FROM pg_type AS t JOIN pg_proc AS p ON p.oid = t.typinput "
                "WHERE p.provolatile = 's' AND t.oid = ANY(%s)",
                ([number for query in _updates(tree) for number in _cast_columns(query)],),
            )
        }


def _updates(tree: str) -> Iterator[str]:
    """Return the UPDATEs of a parsed statement, each without its subqueries."""
    for actual in re.finditer(r"\{QUERY :commandType 2 ", tree):
        node = _node(tree, actual.start())
        while (inner := re.search(r"(?<!^)\{QUERY ", node)) is not None:
            node = node.replace(_node(node, inner.start()), "<>")
        yield node


def _called_with_columns(query: str) -> Iterator[int]:
    for actual in re.finditer(r"\{(?:FUNCEXPR :funcid|OPEXPR :opno \d+ :opfuncid) (\d+)", query):
        if "{VAR " in _node(query, actual.start()):
            yield int(actual[1])


def _cast_columns(query: str) -> Iterator[int]:
    for actual in re.finditer(r"\{COERCEVIAIO ", query):
        node = _node(query, actual.start())
        if "{VAR " in node:
            to = re.search(r":resulttype (\d+)", node.rpartition(":resulttype")[1] + node.rpartition(":resulttype")[2])
            assert to is not None
            yield int(to[1])


def _node(tree: str, opening: int) -> str:
    """The node that begins at a brace."""
    depth = 0
    for place in range(opening, len(tree)):
        depth += {"{": 1, "}": -1}.get(tree[place], 0)
        if not depth:
            return tree[opening : place + 1]
    return tree[opening:]
