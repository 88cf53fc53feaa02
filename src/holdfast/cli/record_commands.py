"""The commands of a record store, declared in one line: ``channels = record_commands("channels", AsyncChannels, ...)``.

The options of ``create`` and ``update`` are the fields of the store's ``New...`` and ``...Change`` types, and the options of
``list`` are its filters. A record is named by its name or its key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any
from uuid import UUID

import click
from msgspec import structs

from holdfast import column
from holdfast.encryption import Secret
from holdfast.errors import NotFound

from .database import open_tenant, tenant_option
from .output import json_option, print_json, print_line, print_table
from .parameters import option
from .record_options import (
    Field,
    Kind,
    Option,
    change_options,
    decorate,
    filter_options,
    new_options,
    option_name,
    values_of,
)

MAX_ROWS = 1_000
"""Maximum number of rows that ``list`` prints."""

acting_option = option("--as", "acting", metavar="USER", envvar="HOLDFAST_USER", help="The user to log as the actor.")


class RecordGroup(click.Group):
    """The commands of a record store. Modules can add commands of the store's own."""

    inherited: frozenset[str] = frozenset()
    """The names of the commands that every record store has."""


def record_commands(
    store: str,
    kind: Kind,
    *,
    columns: Sequence[str],
    name: str = "",
    about: str = "",
    named: Mapping[str, str] | None = None,
) -> click.Group:
    """Return a group with the commands ``list``, ``show``, ``create``, ``update`` and ``delete``, and with ``restore`` and
    ``reveal`` if the store can do that.

    Args:
        store: the name of the store on a tenant's handle.
        kind: its asynchronous class.
        columns: the fields that ``list`` shows.
        name: the name of the group; by default that of the store.
        about: the help text of the group.
        named: fields that contain the id of another record, with the store that finds that record by its name.
    """
    return _Commands(store, kind, columns, named or {}).group(name or store.replace("_", "-"), about)


class _Commands:
    def __init__(self, store: str, kind: Kind, columns: Sequence[str], named: Mapping[str, str]) -> None:
        self._store, self._kind, self._columns, self._named = store, kind, columns, named
        self._noun, self._nouns = kind.noun, kind.nouns
        declared = kind.declared
        self._natural: Sequence[Field] = declared.natural or declared.key
        # The argument KEY is the name; the other parts of a composite name are options.
        self._argument = next((field for field in self._natural if field.name in ("name", "key")), self._natural[0])
        self._rest = [field for field in self._natural if field is not self._argument]
        self._defaults: Mapping[str, Any] = declared.defaults
        self._is_soft, self._has_secrets = hasattr(kind, "restore"), hasattr(kind, "reveal")

    def group(self, name: str, about: str) -> RecordGroup:
        group = RecordGroup(name, help=about or f"Manage the {self._nouns} of a tenant.")
        commands = [self._list(), self._show(), self._create(), self._update(), self._delete()]
        commands += [self._restore()] if self._is_soft else []
        commands += [self._reveal()] if self._has_secrets else []
        for command in commands:
            group.add_command(command)
        group.inherited = frozenset(group.commands)
        return group

    def _list(self) -> click.Command:
        filters, is_searchable = filter_options(self._kind), bool(self._kind.declared.searchable)
        search = [click.option("--search", metavar="TEXT", help="Only those with this text.")] if is_searchable else []
        limit = click.option(
            "--limit", default=20, show_default=True, type=click.IntRange(1, MAX_ROWS), help="Maximum number of rows."
        )
        cursor = click.option("--cursor", help="The cursor of the next page, which the JSON of a page has as `next`.")

        @click.command("list", help=f"List {self._nouns}.")
        @tenant_option
        @decorate([*filters, *search, limit, cursor])
        @json_option
        def command(
            database: str,
            tenant: str,
            limit: int,
            cursor: str | None,
            as_json: bool,
            search: str | None = None,
            **given: Any,
        ) -> None:
            with open_tenant(database, tenant) as handle:
                given = self._with_ids(handle, given)
                where = [column(field).eq(value) for field, value in given.items() if value is not None]
                page = getattr(handle, self._store).list(where=where, search=search, limit=limit, cursor=cursor)
            if as_json:
                print_json({self._nouns.replace(" ", "_").lower(): list(page), "next": page.next})
                return
            rows = [[cell(getattr(row, field)) for field in self._columns] for row in page]
            title = f"{self._nouns[0].upper()}{self._nouns[1:]} of {tenant}"
            print_table(title, [field.replace("_", " ") for field in self._columns], rows)

        return command

    def _show(self) -> click.Command:
        @self._command("show", f"Show one {self._noun}, without its secrets.")
        def command(handle: Any, row: Any, as_json: bool) -> None:
            self._print(row, as_json)

        return command

    def _create(self) -> click.Command:
        @click.command("create", help=f"Create {self._kind.a_noun}.")
        @tenant_option
        @decorate(new_options(self._kind))
        @acting_option
        @json_option
        def command(database: str, tenant: str, acting: str | None, as_json: bool, **given: Any) -> None:
            values = values_of(self._kind.declared.fields, self._kind.new_type, given)
            with open_tenant(database, tenant) as handle, as_user(handle, acting):
                new = self._kind.new_type(**self._with_ids(handle, values))
                row = getattr(handle, self._store).create(new)
            self._print(row, as_json)

        return command

    def _update(self) -> click.Command:
        version = click.option("--version", type=int, help="Change it only if it still has this version.")
        options = [*change_options(self._kind), version, acting_option]

        @self._command("update", f"Change fields of one {self._noun}.", options)
        def command(
            handle: Any, row: Any, as_json: bool, acting: str | None, version: int | None, **given: Any
        ) -> None:
            values = values_of(self._kind.declared.fields, self._kind.change_type, given)
            if not values:
                raise click.UsageError("name at least one field to change; --help lists them")
            change = self._kind.change_type(**values)
            with as_user(handle, acting):
                changed = getattr(handle, self._store).update(*self._key_of(row), change=change, version=version)
            self._print(changed, as_json)

        return command

    def _delete(self) -> click.Command:
        confirm = [click.option("--yes", is_flag=True, help="Do not ask for confirmation.")]

        @self._command("delete", f"Delete one {self._noun}.", [*([] if self._is_soft else confirm), acting_option])
        def command(handle: Any, row: Any, as_json: bool, acting: str | None, yes: bool = False) -> None:
            named = f"{self._noun} {getattr(row, self._argument.name)}"
            if not self._is_soft and not yes:
                click.confirm(f"Permanently delete {named}?", abort=True, err=True)
            with as_user(handle, acting):
                getattr(handle, self._store).delete(*self._key_of(row))
            if as_json:
                print_json({"deleted": self._key_of(row)})
                return
            undo = f" To undo this: restore {' '.join(self._key_of(row))}" if self._is_soft else ""
            print_line(f"Deleted {named}.{undo}")

        return command

    def _restore(self) -> click.Command:
        @click.command("restore", help=f"Undo the deletion of {self._kind.a_noun}. KEY is what `delete` printed.")
        @tenant_option
        @click.argument("key", nargs=-1, required=True)
        @acting_option
        @json_option
        def command(database: str, tenant: str, key: Sequence[str], acting: str | None, as_json: bool) -> None:
            with open_tenant(database, tenant) as handle, as_user(handle, acting):
                row = getattr(handle, self._store).restore(*key)
            self._print(row, as_json)

        return command

    def _reveal(self) -> click.Command:
        @self._command("reveal", f"Print the secrets of one {self._noun}, and log that.", [acting_option])
        def command(handle: Any, row: Any, as_json: bool, acting: str | None) -> None:
            with as_user(handle, acting):
                secrets = getattr(handle, self._store).reveal(*self._key_of(row))
            if as_json:
                print_json(secrets)
                return
            rows = [[field.replace("_", " "), cell(value)] for field, value in secrets.items()]
            print_table(f"Secrets of {self._noun} {getattr(row, self._argument.name)}", ["field", "value"], rows)

        return command

    def _command(
        self, name: str, about: str, options: Sequence[Option] = ()
    ) -> Callable[[Callable[..., None]], click.Command]:
        """Return a decorator for a command of one record: it gets the tenant's handle and the record."""
        key = [click.argument("named", metavar="KEY")]  # not the name of an option
        for field in self._rest:
            default = self._defaults.get(field.name)
            part = f"_{field.name}"  # not the name of the option that changes the field
            key.append(
                click.option(
                    f"--of-{option_name(field.name)}"
                    if _is_taken(field, self._kind)
                    else f"--{option_name(field.name)}",
                    part,
                    default=default,
                    required=default is None,
                    help=f"The {field.name.replace('_', ' ')} of the {self._noun}.",
                )
            )

        def decorator(function: Callable[..., None]) -> click.Command:
            @click.command(name, help=f"{about} KEY is its {self._argument.name} or its id.")
            @tenant_option
            @decorate([*key, *options])
            @json_option
            def command(database: str, tenant: str, named: str, as_json: bool, **given: Any) -> None:
                rest = {field.name: given.pop(f"_{field.name}") for field in self._rest}
                with open_tenant(database, tenant) as handle:
                    row = self._find(getattr(handle, self._store), named, self._with_ids(handle, rest))
                    function(handle, row, as_json, **given)

            return command

        return decorator

    def _find(self, store: Any, key: str, rest: Mapping[str, str]) -> Any:
        """Find a record by its name, or else by its key."""
        name = [key if field is self._argument else rest[field.name] for field in self._natural]
        row = store.find(*name)
        if row is None and len(self._kind.declared.key) == 1 and _can_be(self._kind.declared.key[0], key):
            return store.get(key)
        if row is None:
            raise NotFound(f"{self._noun} {key!r} does not exist", noun=self._noun, key=key)
        return row

    def _with_ids(self, handle: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of fields, with the ids of the records that are given by their names."""
        ids: dict[str, str] = {}
        for field, store in self._named.items():
            name = values.get(field)
            if name is not None and not _is_id(name):
                row = getattr(handle, store).find(name)
                if row is None:
                    raise NotFound(f"{field} {name!r} does not exist", noun=field, key=name)
                ids[field] = row.id
        return {**values, **ids}

    def _key_of(self, row: Any) -> list[str]:
        return [getattr(row, field.name) for field in self._kind.declared.key]

    def _print(self, row: Any, as_json: bool) -> None:
        if as_json:
            print_json({self._noun.replace(" ", "_").lower(): row})
            return
        rows = [[field.replace("_", " "), cell(value)] for field, value in structs.asdict(row).items()]
        print_table(f"{self._noun[0].upper()}{self._noun[1:]}", ["field", "value"], rows)


def _is_taken(field: Field, kind: Kind) -> bool:
    return field.name in kind.change_type.__struct_fields__


def as_user(handle: Any, user: str | None) -> Any:
    """Return a context in which a user is the actor, if there is one."""
    return nullcontext() if user is None else handle.acting(user=user)


def _can_be(field: Field, key: str) -> bool:
    """Return whether a text can be the key of a record: an id has one form, other keys can be any text."""
    return field.kind != "id" or _is_id(key)


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def cell(value: Any) -> str:
    """Return a value as a cell of a table."""
    if value is None:
        return ""
    if isinstance(value, Secret):
        return "(encrypted)"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)
