"""The commands of a grant store, added to a group in one line: ``add_grants(agents, "agent_shares", AsyncAgentShares)``.

A resource is the argument of a command, a principal an option named after its kind: ``grant SERVER --agent helper``. The other
options of ``grant`` are the attributes of the grant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from msgspec import structs

from .database import open_tenant, tenant_option
from .output import json_option, print_json, print_line, print_table
from .record_commands import MAX_ROWS, acting_option, as_user, cell
from .record_options import Field, Kind, Option, decorate, field_options, option_name, values_of

Table = Any
"""A table of a grant store; ``table.fields`` describes the fields of its rows."""


def add_grants(
    group: click.Group,
    store: str,
    kind: Kind,
    *,
    grant: str = "grant",
    revoke: str = "revoke",
    list: str = "grants",
    key_of: Callable[[Any, str], str] | None = None,
) -> None:
    """Add the commands of a grant store to the group of its resources.

    Args:
        store: the name of the store on a tenant's handle.
        kind: its asynchronous class.
        grant, revoke, list: the names of the commands.
        key_of: finds the key of a resource by what the caller calls it; gets the tenant's handle and the argument.
    """
    commands = _Commands(store, kind, key_of or (lambda handle, argument: argument))
    group.add_command(commands.grant(grant))
    group.add_command(commands.revoke(revoke))
    group.add_command(commands.list(list))


class _Commands:
    def __init__(self, store: str, kind: Kind, key_of: Callable[[Any, str], str]) -> None:
        self._store, self._tables, self._key_of = store, kind.grants, key_of
        self._resource = self._tables[0].resource
        self._nouns = " or ".join(table.a_noun for table in self._tables)
        self._argument = self._resource.upper()
        self._resource_argument = click.argument(self._resource)

    def grant(self, name: str) -> click.Command:
        attributes: dict[str, Field] = {}
        for table in self._tables:
            given = [field for field in table.attributes if field in table.new.__struct_fields__]
            attributes |= {field: table.fields[field] for field in given if field != "granted_by"}
        options = [option for field in attributes.values() for option in field_options(field)]

        @click.command(name, help=f"Make {self._nouns} of {self._argument}, or replace its attributes.")
        @tenant_option
        @self._resource_argument
        @decorate([*self._principals("The {} that gets access."), *options])
        @acting_option
        @json_option
        def command(database: str, tenant: str, acting: str | None, as_json: bool, **given: Any) -> None:
            table, principal = self._chosen(given)
            new = _new(table, attributes, given | {table.principal: principal})
            with open_tenant(database, tenant) as handle, as_user(handle, acting):
                new = structs.replace(new, **{self._resource: self._key_of(handle, given[self._resource])})
                row = getattr(handle, self._store).grant(new)
            if as_json:
                print_json({table.noun.replace(" ", "_").lower(): row})
                return
            cells = [[field.replace("_", " "), cell(value)] for field, value in structs.asdict(row).items()]
            print_table(_title(table.noun), ["field", "value"], cells)

        return command

    def revoke(self, name: str) -> click.Command:
        @click.command(name, help=f"Remove {self._nouns} of {self._argument}.")
        @tenant_option
        @self._resource_argument
        @decorate(self._principals("The {} that loses access."))
        @acting_option
        @json_option
        def command(database: str, tenant: str, acting: str | None, as_json: bool, **given: Any) -> None:
            resource, (table, principal) = given[self._resource], self._chosen(given)
            with open_tenant(database, tenant) as handle, as_user(handle, acting):
                key = self._key_of(handle, resource)
                done = getattr(handle, self._store).revoke(key, principal, kind=table.principal)
            if as_json:
                print_json({"revoked": done})
                return
            named = f"{table.noun} of {resource} to {principal}"
            print_line(f"Removed {named}." if done else f"There was no {named}.")

        return command

    def list(self, name: str) -> click.Command:
        several = len(self._tables) > 1
        kinds = click.Choice([table.principal for table in self._tables])
        kind = [click.option("--kind", type=kinds, help="Only the grants to this kind.")] if several else []
        limit = click.option(
            "--limit", default=20, show_default=True, type=click.IntRange(1, MAX_ROWS), help="Maximum number of rows."
        )
        cursor = click.option("--cursor", help="The cursor of the next page, which the JSON of a page has as `next`.")
        nouns = " or ".join(table.nouns for table in self._tables)
        about = f"List the {nouns} of one {self._argument}, or those to one principal."

        @click.command(name, help=about)
        @tenant_option
        @click.argument(self._resource, required=False)
        @decorate([*self._principals("Only those to this {}.", required=False), *kind, limit, cursor])
        @json_option
        def command(
            database: str,
            tenant: str,
            limit: int,
            cursor: str | None,
            as_json: bool,
            kind: str | None = None,
            **given: Any,
        ) -> None:
            resource = given[self._resource]
            table, principal = self._side(resource, kind, given)
            with open_tenant(database, tenant) as handle:
                key = None if resource is None else self._key_of(handle, resource)
                page = getattr(handle, self._store).list(
                    resource=key, principal=principal, kind=table.principal, limit=limit, cursor=cursor
                )
            if as_json:
                print_json({table.nouns.replace(" ", "_").lower(): [*page], "next": page.next})
                return
            names = [table.resource, table.principal, *table.attributes]
            rows = [[cell(getattr(row, name)) for name in names] for row in page]
            title = f"{_title(table.nouns)} of {resource or principal}"
            print_table(title, [name.replace("_", " ") for name in names], rows)

        return command

    def _principals(self, about: str, *, required: bool = True) -> Sequence[Option]:
        """Return an option for each kind of principal."""
        alone = len(self._tables) == 1
        return [
            click.option(
                f"--{option_name(table.principal)}",
                _parameter(table),
                required=required and alone,
                help=about.format(table.principal.replace("_", " ")),
            )
            for table in self._tables
        ]

    def _chosen(self, given: Mapping[str, Any]) -> tuple[Table, str]:
        """Return the table and the principal that the options name.

        Raises:
            UsageError: they do not name exactly one principal.
        """
        named = [(table, given[_parameter(table)]) for table in self._tables if given[_parameter(table)] is not None]
        if len(named) != 1:
            raise click.UsageError(f"name one principal: {self._options()}")
        return named[0]

    def _side(self, resource: str | None, kind: str | None, given: Mapping[str, Any]) -> tuple[Table, str | None]:
        """Return the table to list, and the principal unless the list is that of a resource."""
        if resource is None:
            return self._chosen(given)
        if any(given[_parameter(table)] is not None for table in self._tables):
            raise click.UsageError(f"name {_with_article(self._resource)} or a principal, not both")
        if kind is None and len(self._tables) > 1:
            raise click.UsageError("--kind is missing: name the kind of principal")
        return next(table for table in self._tables if kind in (None, table.principal)), None

    def _options(self) -> str:
        return " or ".join(f"--{option_name(table.principal)}" for table in self._tables)


def _new(table: Table, attributes: Mapping[str, Field], given: Mapping[str, Any]) -> Any:
    """Return the grant that the options describe.

    Raises:
        UsageError: an attribute is missing, or belongs to grants of another kind.
    """
    values = values_of(table.fields, table.new, given)
    foreign = [name for name in attributes if name not in table.fields and given[name] not in (None, ())]
    missing = [field.name for field in structs.fields(table.new) if field.required and field.name not in values]
    for name in foreign:
        raise click.UsageError(f"{table.a_noun} has no {name.replace('_', ' ')}")
    for name in missing:
        raise click.UsageError(f"--{option_name(name)} is missing")
    return table.new(**values)


def _parameter(table: Table) -> str:
    return f"to_{table.principal}"  # not the name of an attribute


def _title(noun: str) -> str:
    return f"{noun[0].upper()}{noun[1:]}"


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
