"""``holdfast secrets rotate`` in processes of its own, killed before each of its statements in turn.

Run as a script, because a process that is to die must not be the one that runs the tests.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli.commands import root
from holdfast.core import rotation
from holdfast.core.crypto import VARIABLE, KeyRing, Secret
from holdfast.core.encrypted_columns import encrypted_columns
from holdfast.core.queries import Query
from holdfast.core.scope import Scope
from holdfast.encryption import rotate_secrets
from holdfast.sync_runner import step
from tests.contract.cases.record_samples import Samples, create_referenced, record_stores
from tests.migrations.processes import KILLED, NEVER, in_child

OLD, NEW = "0" * 64, "1" * 64
TENANTS = {"acme": 0, "zeta": 1}
"""Tenants, and the sample that each has of every store: together they fill every encrypted column."""

Value = tuple[str, str, str, str]
"""The column, tenant and row of a secret, and its value or the name of its key."""


def fill(url: str) -> None:
    """Store secrets in every encrypted column, for each tenant."""
    with Holdfast(url, encryption_key=OLD) as hf:
        for name, number in TENANTS.items():
            tenant = hf.tenant(name)
            tenant.secrets.set(f"key {number}", Secret(f"value {number}"))
            for store, kind in record_stores().items():
                if kind.declared.secrets:
                    step(create_referenced(Awaitable(tenant), kind))
                    getattr(tenant, store).create(Samples(kind).new(number))


class Awaitable:
    """A synchronous handle whose methods can be awaited."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return Awaitable(value)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return value(*args, **kwargs)

        return call


def values(url: str, *keys: str) -> tuple[list[Value], list[Value]]:
    """Return every secret, decrypted with these keys, and the id of the key of each."""
    revealed: list[Value] = []
    keys_of: list[Value] = []
    ids = {KeyRing(key).current_prefix: key for key in (OLD, NEW)}
    with Holdfast(url, encryption_key=keys) as hf:
        for column in encrypted_columns():
            names = ", ".join(f"CAST({name} AS text)" for name in column.row)
            sql = f"SELECT tenant_id, {names}, {column.column} FROM {column.table} WHERE {column.column} IS NOT NULL"
            for tenant, *row, stored in fetch(hf, sql):
                secret = column.load(Scope(tenant, hf._setting), row, stored)
                assert secret is not None
                place = (f"{column.table}.{column.column}", tenant, "/".join(row))
                revealed.append((*place, json.dumps(secret.reveal(), sort_keys=True)))
                keys_of.append((*place, next((key for prefix, key in ids.items() if stored.startswith(prefix)), "")))
    return sorted(revealed), sorted(keys_of)


def fetch(hf: Holdfast, sql: str) -> Sequence[Any]:
    """Run one statement."""

    async def call(connection: Any) -> Any:
        return [list(row) for row in await connection.fetch(sql, ())]

    rows: Sequence[Any] = step(hf._engine.read(call))
    return rows


def rotate(url: str, *, at: int = NEVER) -> dict[str, Any]:
    """Run the command, and die before statement ``at``."""
    left = at

    def dying(method: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(KILLED)
            return await method(*args, **kwargs)

        return run

    for name in ("all", "one", "many"):
        setattr(Query, name, dying(getattr(Query, name)))
    result = CliRunner().invoke(
        root, ["secrets", "rotate", "--database", url, "--json"], env={VARIABLE: f"{NEW},{OLD}"}
    )
    assert result.exit_code == 0, result.output
    output: dict[str, Any] = json.loads(result.output)
    return output


def resume(url: str) -> dict[str, Any]:
    """Read and write secrets as a server that has both keys does during a rotation, and complete the rotation.

    Afterwards every secret is encrypted with the old key again, for the next try.
    """
    killed, other_order = values(url, NEW, OLD), values(url, OLD, NEW)
    with Holdfast(url, encryption_key=[NEW, OLD]) as hf:
        secrets = hf.tenant("acme").secrets
        secrets.set("meanwhile", Secret("written during the rotation"))
        written = secrets.get("meanwhile").reveal()
        secrets.delete("meanwhile")
    output = rotate(url)
    after = values(url, NEW)
    with Holdfast(url, encryption_key=[OLD, NEW]) as hf:
        rotate_secrets(hf)
    return {
        "killed": killed,
        "other_order": other_order,
        "written": written,
        "rotation": output["rotation"],
        "after": after,
    }


def kill_at_every_statement(url: str) -> dict[str, Any]:
    """Rotate, killed before the first statement, the second, and so on, and resume after each kill."""
    rotation.ROWS_PER_TRANSACTION = 1
    completed(partial(fill, url))
    before = completed(partial(values, url, OLD))
    tries: list[dict[str, Any]] = []
    exits: list[int] = []
    while not exits or exits[-1] == KILLED:
        code, _ = in_child(partial(rotate, url, at=len(exits)))
        exits.append(code)
        tries.append(completed(partial(resume, url)))
    columns = [f"{column.table}.{column.column}" for column in encrypted_columns()]
    return {"columns": columns, "before": before, "exits": exits, "tries": tries}


def completed(work: Callable[[], Any]) -> Any:
    """Return the output of a child process that runs this function.

    Raises:
        RuntimeError: it has failed.
    """
    code, output = in_child(work)
    if code:
        raise RuntimeError(output)
    return output


def main() -> None:
    """Print the results for the database in the argument."""
    print(json.dumps(kill_at_every_statement(sys.argv[1])))


if __name__ == "__main__":
    main()
