"""A missing optional library raises one typed error with the command that installs it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, MissingExtra
from holdfast.extras import needs

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = {
    name: [re.split(r"[\[>=;]", requirement)[0].strip() for requirement in requirements]
    for name, requirements in PYPROJECT["project"]["optional-dependencies"].items()
    if name != "all"
}
"""Each extra, and the packages that it installs."""
MODULES = {
    "a2a-sdk": "a2a",
    "jsonschema-rs": "jsonschema_rs",
    "langgraph-checkpoint": "langgraph",
    "psycopg-pool": "psycopg_pool",
    "pyyaml": "yaml",
}
"""The import names of packages, where they differ."""
JOINED = """
their_type = type("Connection", (), {{"__module__": "{module}"}})
holdfast.AsyncHoldfast(":memory:", sqlite="stdlib").tenant("a").join(their_type())
"""
NEW_TOOLS = "import holdfast.types as types; holdfast.Holdfast(':memory:').tenant('a')"
TOOL = "types.NewCustomTool('t', 'true', parameters={'type': 'object'})"
PROGRAM = "types.NewSecureCLI('gh', deny_args=['x'])"
USES = {
    "postgres": ["holdfast.Holdfast('postgresql://x/y')", "holdfast.AsyncHoldfast('postgresql://x/y')"],
    "server": [
        "import holdfast.api",
        "import holdfast.api.server",
        "from holdfast.declared import documents; documents.parse_documents('x.yaml', b'a: 1', holdfast.Limits())",
    ],
    "langgraph": ["import holdfast.adapters.langgraph", "import holdfast.adapters.langgraph_import"],
    "crewai": ["import holdfast.adapters.crewai"],
    "a2a": ["import holdfast.adapters.a2a"],
    "encryption": ["from holdfast.encryption import KeyRing; KeyRing('x' * 32).check()"],
    "sqlalchemy": [JOINED.format(module="sqlalchemy.ext.asyncio.session").replace("Connection", "AsyncSession")],
    "aiosqlite": [JOINED.format(module="aiosqlite.core")],
    "kubernetes": ["import holdfast.declared.cluster"],
    "packs": ["holdfast.Holdfast(':memory:', packs='p')"],
    "tools": [f"{NEW_TOOLS}.custom_tools.create({TOOL})", f"{NEW_TOOLS}.secure_cli.create({PROGRAM})"],
    "erasure": [
        "from holdfast.erasure import ErasureConsumer; ErasureConsumer(holdfast.AsyncHoldfast(':memory:'), 'redis://x')"
    ],
}
"""Code that requires each extra."""
HIDE = """
import os, sys, traceback
import holdfast
from holdfast.errors import MissingExtra
for hidden in {hidden}:
    sys.modules[hidden] = None
for use in {uses}:
    try:
        exec(use)
    except MissingExtra as error:
        print(error.extra, isinstance(error, ImportError), error.name.partition(".")[0] in {hidden}, error)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
"""


def test_every_extra_has_code_that_requires_it() -> None:
    assert USES.keys() == EXTRAS.keys()


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_extra_raises_one_typed_error_with_the_command_that_installs_it(extra: str) -> None:
    hidden = [MODULES.get(package, package) for package in EXTRAS[extra]]
    code = HIDE.format(hidden=hidden, uses=USES[extra])
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    lines = process.stdout.splitlines()
    assert len(lines) == len(USES[extra]), process.stdout
    for line in lines:
        assert re.fullmatch(
            rf"{extra} True True [\w.]+ is not installed: pip install '{re.escape(f'holdfast[{extra}]')}'", line
        )


def test_a_missing_module_of_the_package_is_not_a_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError), needs("server"):
        import holdfast.nothing_by_this_name  # noqa: F401  # type: ignore[import-not-found]


def test_an_incompatible_library_is_not_a_missing_extra() -> None:
    with pytest.raises(ImportError) as caught, needs("server"):
        from msgspec import nothing_by_this_name  # noqa: F401  # type: ignore[attr-defined]
    assert not isinstance(caught.value, HoldfastError)


def test_a_missing_extra_is_an_import_error_and_a_holdfast_error() -> None:
    assert issubclass(MissingExtra, ImportError)
    assert issubclass(MissingExtra, HoldfastError)
