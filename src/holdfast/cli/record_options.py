"""The options of a record store's commands, made from the fields of its types.

A secret is never an argument, because every user of the machine can read the arguments of a process: ``--api-key-file`` names a
file, ``-`` being standard input, and ``--api-key-env`` an environment variable.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import click
from msgspec import Struct, structs

from holdfast.encryption import Secret

Option = Callable[[Any], Any]
Kind = Any
"""The asynchronous class of a record store; ``kind.declared`` describes its fields."""
Field = Any
"""A field of ``kind.declared``."""
Fields = Mapping[str, Field]
"""The fields of a row type, by name."""


def decorate(options: Sequence[Option]) -> Option:
    """Return a decorator that adds options to a command, in this order."""

    def decorator(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorator


def option_name(field: str) -> str:
    """Return the name of a field's option, without dashes in front."""
    return field.removeprefix("is_").replace("_", "-")


def new_options(kind: Kind) -> list[Option]:
    """Return the options of ``create``."""
    fields = [field for field in structs.fields(kind.new_type) if field.name in kind.declared.fields]
    return [
        option
        for field in fields
        for option in field_options(kind.declared.fields[field.name], required=field.required)
    ]


def change_options(kind: Kind) -> list[Option]:
    """Return the options of ``update``."""
    declared = kind.declared
    fields = [field for field in structs.fields(kind.change_type) if field.name in declared.fields]
    options = [option for field in fields for option in field_options(declared.fields[field.name], required=False)]
    optional = [option_name(field.name) for field in fields if NoneType in get_args(field.type)]
    if optional:
        help = "A field to clear; repeatable."
        options.append(click.option("--clear", multiple=True, type=click.Choice(optional), help=help))
    return options


def filter_options(kind: Kind) -> list[Option]:
    """Return the options of ``list``: the fields that can be filtered."""
    return [
        _option(field, click.STRING if field.kind == "id" else _type(field), f"Only those with this {_words(field)}.")
        for field in kind.declared.fields.values()
        if field.is_filterable and field.kind in ("id", "plain", "text", "bool", "number")
    ]


def values_of(fields: Fields, struct: type[Struct], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that were given, by field.

    Raises:
        UsageError: a value cannot be read, or two options contradict each other.
    """
    values: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        field = fields.get(name)
        if field is None:
            continue  # the caller of this function handles it
        value = _secret(field, given) if field.kind == "secret" else given.get(name)
        if value not in (None, ()):
            values[name] = list(value) if isinstance(value, tuple) else value
    for option in given.get("clear", ()):
        name = next(name for name in struct.__struct_fields__ if option_name(name) == option)
        if name in values:
            raise click.UsageError(f"--{option} and --clear {option} contradict each other")
        values[name] = None
    return values


def field_options(field: Field, *, required: bool = False) -> list[Option]:
    """Return the options that set a field."""
    name, words = option_name(field.name), _words(field)
    if field.kind == "secret":
        is_object = any(get_origin(arg) is dict for arg in get_args(field.type))
        content = f"The {words}, as a JSON object" if is_object else f"The {words}"
        return secret_options(name, content)
    if field.is_list_of_names:
        option = click.option(
            f"--{name.removesuffix('s')}",
            field.name,
            multiple=True,
            required=required,
            help=f"{_a(words)}; repeatable.",
        )
        return [option]
    about = f"The {words}."
    if field.kind == "json":
        about = f"The {words}: JSON, or @FILE."
    elif field.kind == "bool":
        about = f"Whether it is {words}." if field.name.startswith("is_") else f"Turns {words} on or off."
    return [_option(field, _type(field), about, required=required)]


def _option(field: Field, type: Any, about: str, *, required: bool = False) -> Option:
    name = option_name(field.name)
    declaration = f"--{name}/--no-{name}" if field.kind == "bool" else f"--{name}"
    settings: dict[str, Any] = {} if field.kind == "bool" else {"type": type}
    if field.kind in ("json", "time"):
        settings["metavar"] = field.kind.upper()
    return click.option(declaration, field.name, default=None, required=required, help=about, **settings)


def _type(field: Field) -> Any:
    if field.kind == "plain":
        return click.Choice([str(choice) for choice in field.choices])
    if field.kind == "number":
        return click.FLOAT if field.type is float else click.INT
    return {"json": json_value, "time": _time}.get(field.kind, click.STRING)


def json_value(value: str) -> Any:
    """Return the value of a text in JSON, or of a file that is named after @."""
    try:
        return json.loads(Path(value[1:]).read_text() if value.startswith("@") else value)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{value!r} is not JSON, nor @ and the name of a file with JSON: {error}") from error


def _time(value: str) -> datetime:
    try:
        time = datetime.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a time such as 2026-01-31T12:00:00+00:00") from error
    return time.astimezone() if time.tzinfo is None else time


def _secret(field: Field, given: Mapping[str, Any]) -> Secret[Any] | None:
    content = secret_text(option_name(field.name), given.get(f"{field.name}_file"), given.get(f"{field.name}_env"))
    if content is None or not any(get_origin(arg) is dict for arg in get_args(field.type)):
        return content
    try:
        return Secret(json.loads(content.reveal()))
    except ValueError:  # not the error itself: it can contain the secret
        raise click.UsageError(f"the {_words(field)} must be a JSON object") from None


def secret_options(name: str, about: str) -> list[Option]:
    """Return the options that name the source of a secret."""
    return [
        click.option(f"--{name}-file", metavar="FILE", help=f"{about}, read from a file; - is standard input."),
        click.option(f"--{name}-env", metavar="NAME", help=f"{about}, read from an environment variable."),
    ]


def secret_text(name: str, file: str | None, variable: str | None) -> Secret[str] | None:
    """Return the text that the options of a secret name, or ``None`` if none was given.

    Raises:
        UsageError: both were given, or the variable is not set.
    """
    if file is None and variable is None:
        return None
    if file is not None and variable is not None:
        raise click.UsageError(f"--{name}-file and --{name}-env contradict each other")
    if variable is not None and variable not in os.environ:
        raise click.UsageError(f"--{name}-env: the environment variable {variable} is not set")
    return Secret(os.environ[variable] if variable is not None else _read(str(file)))


def _read(file: str) -> str:
    text = sys.stdin.read() if file == "-" else Path(file).read_text()
    return text.removesuffix("\n").removesuffix("\r")


def _words(field: Field) -> str:
    return str(field.name).removeprefix("is_").replace("_", " ")


def _a(words: str) -> str:
    singular = words.removesuffix("s")
    return f"{'An' if singular[0] in 'aeiou' else 'A'} {singular}"
