"""The rules of style that ``tests/test_tidy.py`` enforces. Each takes source and yields its violations.

Rules of the linters are not repeated here. Each message states how to fix the violation.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "src/holdfast"

FUNCTION_LINES = 70
MODULE_LINES = 400
DRIVER_LINES = 120
STORE_METHODS = 12

VAGUE_NAMES = {"base", "common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
FORMATTED_SQL_ALLOWED = {
    f"{PACKAGE}/drivers/apsw.py": "the names of savepoints",
    f"{PACKAGE}/drivers/psycopg.py": "the names of savepoints",
    f"{PACKAGE}/engines/sqlite/file.py": "a PRAGMA takes no parameters",
    f"{PACKAGE}/engines/sqlite/stdlib.py": "a PRAGMA takes no parameters",
    f"{PACKAGE}/migrations/runner.py": "the placeholder of either dialect",
}
ENTRY_POINTS = {"holdfast.__main__", "holdfast.cli"}
"""Modules that are started, not imported."""
FOUND_BY_FOLDER = ("tests.contract.cases.",)
"""Modules that are found by the folder they lie in."""


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: str
    """Relative to the repository, with forward slashes."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """What the text means."""
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Everything in the tree."""
        return list(ast.walk(self.tree))

    @property
    def module(self) -> str:
        """The dotted name, for files of the package."""
        parts = Path(self.path.removeprefix("src/")).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def within(self, *folders: str) -> bool:
        """Return whether the file is in one of these folders of the package."""
        return any(self.path.startswith(f"{PACKAGE}/{folder}/") for folder in folders)


Rule = Callable[[Source], Iterable[str]]


def sources(*folders: str) -> list[Source]:
    """Every Python file below these folders."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [Source(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in files]


def functions_are_short(source: Source) -> Iterator[str]:
    """No function over 70 lines."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{source.path}:{node.lineno}: {node.name} has {lines} lines, over {FUNCTION_LINES}: split it"


def modules_are_short(source: Source) -> Iterator[str]:
    """No module over 400 lines, no driver over 120."""
    most = DRIVER_LINES if source.within("drivers") else MODULE_LINES
    lines = len(source.text.splitlines())
    if lines > most:
        yield f"{source.path}: {lines} lines, over {most}: make it two modules"


def stores_are_small(source: Source) -> Iterator[str]:
    """No store with more than 12 public methods."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and {_name(base) for base in node.bases} & {"Store", "TenantStore"}:
            public = [item.name for item in node.body if _is_function(item) and not item.name.startswith("_")]
            if len(public) > STORE_METHODS:
                yield f"{source.path}:{node.lineno}: {node.name} has {len(public)} public methods: make it two stores"


def module_names_say_something(source: Source) -> Iterator[str]:
    """No module called utils, helpers, common, base or manager."""
    path = Path(source.path)
    stem = path.parent.name if path.stem == "__init__" else path.stem
    if VAGUE_NAMES & set(stem.lower().split("_")):
        yield f"{source.path}: the name {stem!r} is vague: name the module after its content"


_IMPORTS = {
    "pickle": "msgspec, which builds data and never objects",
    "marshal": "msgspec, which builds data and never objects",
    "shelve": "a store",
    "dill": "msgspec, which builds data and never objects",
    "cloudpickle": "msgspec, which builds data and never objects",
}
_CALLS = {
    "eval": "msgspec.json.decode for data; there is no other need",
    "exec": "a function",
    "__import__": "an import statement",
}
_METHODS = {"extractall": "a restore by directory handles, which refuses links out of the root"}
_CLOCK = "a Clock, which is handed in (holdfast.clock)"
_CLOCKS = {
    "datetime.now": _CLOCK,
    "datetime.utcnow": _CLOCK,
    "datetime.today": _CLOCK,
    "date.today": _CLOCK,
    "time.time": _CLOCK,
    "time.time_ns": _CLOCK,
    "time.monotonic": "holdfast.clock.monotonic_s",
    "time.monotonic_ns": "holdfast.clock.monotonic_s",
    "time.perf_counter": "holdfast.clock.monotonic_s",
}
_IDS = "an IdSource, which is handed in (holdfast.ids)"
_RANDOM = {
    "uuid.uuid1": _IDS,
    "uuid.uuid4": _IDS,
    "uuid_utils.uuid4": _IDS,
    "uuid_utils.uuid7": _IDS,
    "os.urandom": _IDS,
}


def banned_names_are_absent(source: Source) -> Iterator[str]:
    """No pickle, eval, exec, extractall; no clock outside clock.py and no randomness outside ids.py."""
    for line, name in _imported(source):
        top = name.partition(".")[0]
        if top in _IMPORTS:
            yield f"{source.path}:{line}: {top} is banned: use {_IMPORTS[top]}"
        if top in {"random", "secrets"} and not _may_be_random(source):
            yield f"{source.path}:{line}: {top} is banned here: use {_IDS}"
    for node in source.nodes:
        if isinstance(node, ast.Call) and (output := _banned_call(node, source)):
            yield f"{source.path}:{node.lineno}: {output}"


def _banned_call(node: ast.Call, source: Source) -> str:
    if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        return f"{node.func.id} is banned: use {_CALLS[node.func.id]}"
    if not isinstance(node.func, ast.Attribute):
        return ""
    if node.func.attr in _METHODS:
        return f"{node.func.attr} is banned: use {_METHODS[node.func.attr]}"
    dotted = ".".join(_dotted(node.func).split(".")[-2:])
    if dotted in _CLOCKS and not _may_read_the_clock(source):
        return f"{dotted} is banned here: use {_CLOCKS[dotted]}"
    if dotted in _RANDOM and not _may_be_random(source):
        return f"{dotted} is banned here: use {_RANDOM[dotted]}"
    return ""


def _may_read_the_clock(source: Source) -> bool:
    return source.path == f"{PACKAGE}/clock.py" or source.within("testing")


def _may_be_random(source: Source) -> bool:
    return source.path == f"{PACKAGE}/ids.py" or source.within("testing")


_SECRET_WORDS = re.compile(r"(^|_)(digest|hexdigest|hmac|signature|mac)$")


def digests_are_compared_in_constant_time(source: Source) -> Iterator[str]:
    """No ``==`` on a digest or a signature."""
    for node in source.nodes:
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            for side in (node.left, *node.comparators):
                name = _name(side.func if isinstance(side, ast.Call) else side)
                if _SECRET_WORDS.search(name):
                    yield f"{source.path}:{node.lineno}: == on {name} tells how much of it is right: use hmac.compare_digest"


_SENDS_SQL = {
    "execute",
    "executemany",
    "executescript",
    "fetch",
    "fetchrow",
    "fetchval",
    "many",
    "exec_driver_sql",
    "text",
}


def sql_is_never_formatted(source: Source) -> Iterator[str]:
    """No f-string, ``%``, ``+`` or ``format`` in SQL that is sent to a database."""
    if source.path not in FORMATTED_SQL_ALLOWED and not source.within("testing"):
        yield from formatted_sql(source)


def formatted_sql(source: Source) -> Iterator[str]:
    """Every place where formatted SQL is sent."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and node.args and _name(node.func) in _SENDS_SQL and _is_formatted(node.args[0]):
            yield f"{source.path}:{node.lineno}: formatted SQL: use a named query with :parameters (core/queries.py)"


def _is_formatted(node: ast.expr) -> bool:
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
        return any(_is_text(side) or _is_formatted(side) for side in (node.left, node.right))
    return isinstance(node, ast.Call) and _name(node.func) == "format"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


_COLOURED = {"asyncio", "concurrent", "threading", "multiprocessing", "anyio", "queue", "selectors", "socket", "time"}


def stores_and_core_have_no_colour(source: Source) -> Iterator[str]:
    """No asyncio, no thread, no lock and no sleep in stores and core: they only await their connection."""
    if source.within("stores", "core"):
        for line, name in _imported(source):
            if name.partition(".")[0] in _COLOURED:
                yield f"{source.path}:{line}: {name} does not belong here: await the connection, or do it in an engine"


def public_names_have_docstrings(source: Source, protocols: Iterable[ast.ClassDef] = ()) -> Iterator[str]:
    """A docstring on every public class, function and method, unless it fulfils a documented one of a class above it.

    The methods of the shipped test tools mirror documented methods, of stores and of other libraries, and need no docstring.
    """
    if ast.get_docstring(source.tree) is None and source.text.strip():
        yield f"{source.path}:1: the module has no docstring: state its purpose"
    classes = {node.name: node for node in source.tree.body if isinstance(node, ast.ClassDef)}
    owners = [node for node in classes.values() if not node.name.startswith("_") and not source.within("testing")]
    documented = {owner.name: _documented_above(owner, classes, protocols) for owner in owners}
    named = [(node.name, node) for node in source.tree.body if _is_public(node) and not _states_a_promise(node)]
    named += [
        (f"{owner.name}.{node.name}", node)
        for owner in owners
        for node in owner.body
        if _is_public(node) and node.name not in documented[owner.name]
    ]
    for name, node in named:
        if ast.get_docstring(node) is None:
            yield f"{source.path}:{node.lineno}: {name} has no docstring: state what it does, guarantees and raises"


def protocols(package: Iterable[Source]) -> list[ast.ClassDef]:
    """Return all protocols of the package."""
    nodes = (node for source in package for node in source.nodes if isinstance(node, ast.ClassDef))
    return [node for node in nodes if "Protocol" in {_name(base) for base in node.bases}]


def _is_public(node: ast.AST) -> bool:
    return (_is_function(node) or isinstance(node, ast.ClassDef)) and not node.name.startswith("_")


def _states_a_promise(node: ast.AST) -> bool:
    """Return whether a function is a case of the contract suite, whose name states its promise."""
    called = (item.func for item in getattr(node, "decorator_list", ()) if isinstance(item, ast.Call))
    return "contract" in {_name(item) for item in called}


def _documented_above(
    owner: ast.ClassDef, classes: dict[str, ast.ClassDef], protocols: Iterable[ast.ClassDef]
) -> set[str]:
    """Return the methods of a class that a base class, or a protocol it implements completely, documents."""
    mine = _methods(owner).keys()
    above = [classes[_name(base)] for base in owner.bases if _name(base) in classes]
    above += [protocol for protocol in protocols if protocol is not owner and _methods(protocol).keys() <= mine]
    return {name for item in above for name, node in _methods(item).items() if ast.get_docstring(node)}


def _methods(owner: ast.ClassDef) -> dict[str, ast.AST]:
    return {node.name: node for node in owner.body if _is_function(node) and _is_public(node)}


def names_of_all_are_complete(source: Source) -> Iterator[str]:
    """``__all__`` lists every public name of the module, once, in order."""
    listed: list[str] = []
    bound: set[str] = set()
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and _name(node.targets[0]) == "__all__":
            listed = list(ast.literal_eval(node.value))
        elif isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
        elif _is_public(node):
            bound.add(node.name)
    bound = {name for name in bound if not name.startswith("_") and name != "annotations"}
    for name in sorted(bound - set(listed)):
        yield f"{source.path}: {name} is public but not in __all__: add it"
    for name in sorted(set(listed) - bound - {"__version__"}):
        yield f"{source.path}: __all__ has {name}, which is not here: remove it"
    # Constants, then classes, then the rest, as the linter has it.
    if listed != sorted(set(listed), key=lambda name: (not name.isupper(), not name[0].isupper(), name)):
        yield f"{source.path}: __all__ is not in order: sort it"


RULES: tuple[Rule, ...] = (
    functions_are_short,
    modules_are_short,
    stores_are_small,
    module_names_say_something,
    banned_names_are_absent,
    digests_are_compared_in_constant_time,
    sql_is_never_formatted,
    stores_and_core_have_no_colour,
)
"""The rules for every module of the package."""


def unused_modules(package: Iterable[Source], others: Iterable[Source]) -> Iterator[str]:
    """Modules that are never imported. Shipped test tools may be imported by tests alone."""
    package = list(package)
    by_name = {source.module: source for source in package}
    used = {name for source in package for name in _modules_used(source)}
    used_in_tests = {name for source in others for _, name in _imported(source)}
    for name, source in by_name.items():
        tested = name.startswith("holdfast.testing.") and name in used_in_tests
        if name in used or tested or name in ENTRY_POINTS or source.path.endswith("__init__.py"):
            continue
        yield f"{source.path}: it is never imported: use it or remove it"


def _modules_used(source: Source) -> set[str]:
    used = {name for _, name in _imported(source) if name != source.module}
    if source.module in LOADS_BY_NAME:
        package = source.module.rpartition(".")[0]
        texts = (node.value for node in source.nodes if isinstance(node, ast.Constant))
        used |= {f"{package}.{text.partition('.')[0]}" for text in texts if isinstance(text, str)}
    return used


LOADS_BY_NAME = {"holdfast.drivers.join", "holdfast.cli.commands"}
"""They import modules beside them by the names in their tables."""


def public_modules(package: Iterable[Source]) -> list[Source]:
    """The modules users import from: those behind the names of ``holdfast`` and those without an underscore beside it."""
    package = list(package)
    root = next(source for source in package if source.module == "holdfast")
    behind = {name for _, name in _imported(root)}
    beside = {source.module for source in package if source.module.count(".") == 1}
    return [
        source
        for source in package
        if source.within("stores", "testing")
        or source.module in behind
        or (source.module in beside and "__" not in source.path)
    ]


_MACHINE = re.compile(r"(?<![\w.\-:/$}])/(?:root|work|home/\w+|Users/\w+|private/var)/[\w.]")
_REGISTRY = re.compile(r"pypi\.(?:org|python)|pythonhosted\.org|--(?:extra-)?index-url|registry\.npmjs", re.IGNORECASE)


def machine_traces(path: str, text: str) -> Iterator[str]:
    """Paths of one machine, and hosts of package registries."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, what in ((_MACHINE, "a path of one machine"), (_REGISTRY, "the host of a registry")):
            if actual := pattern.search(line):
                yield f"{path}:{number}: {what}: {actual[0]!r}: leave it out"


_FENCE = re.compile(r"^(```|~~~)")


def titles(path: str, text: str) -> Iterator[str]:
    """Documents without exactly one title."""
    count, fenced = 0, False
    for line in text.splitlines():
        if _FENCE.match(line.lstrip()):
            fenced = not fenced
        elif not fenced and line.startswith("# "):
            count += 1
    if count != 1:
        yield f"{path}: {count} titles (lines that start with one #): a document has exactly one"


TABLES_FROM_ABOVE = {
    ("workspace/retention_rules.sql", "retention_holds"): "the removal of a snapshot or a session checks for holds",
    ("workspace/retention_rules.sql", "server_settings"): "how many snapshots a run keeps may be set for all tenants",
}


def store_layers() -> list[list[str]]:
    """The layers inside ``stores/`` that import-linter enforces, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == ["holdfast.stores"])
    return [[name.strip() for name in layer.split("|")] for layer in layers]


def tables_of_layers_above(layers: list[list[str]]) -> Iterator[str]:
    """SQL files of ``stores/`` that name a table which only a layer above, or beside, inserts into."""
    height = {name: -number for number, layer in enumerate(layers) for name in layer}
    folder = ROOT / PACKAGE / "stores"
    texts = {
        path.relative_to(folder).as_posix(): re.sub(r"--.*", "", path.read_text()) for path in folder.rglob("*.sql")
    }
    owners: dict[str, str] = {}
    for path, text in texts.items():
        room = path.partition("/")[0]
        for table in re.findall(r"\bINSERT INTO (\w+)", text):
            owners[table] = min(room, owners.get(table, room), key=height.__getitem__)
    for source in folder.rglob("*.py"):  # the statements of record stores are made from their declarations
        for table in re.findall(r'^    table\b[^=]*= "(\w+)"', source.read_text(), re.MULTILINE):
            owners[table] = source.relative_to(folder).parts[0]
    for shared in (ROOT / PACKAGE / "core").rglob("*.sql"):  # below all layers
        for table in re.findall(r"\bINSERT INTO (\w+)", shared.read_text()):
            owners.pop(table, None)
    for path, text in sorted(texts.items()):
        room = path.partition("/")[0]
        for table in sorted(set(re.findall(r"\b(?:FROM|INTO|UPDATE|JOIN)\s+(\w+)", text))):
            owner = owners.get(table, room)
            is_below = owner == room or height[owner] < height[room]
            if not is_below and (path, table) not in TABLES_FROM_ABOVE:
                yield f"{path} names {table}, a table of {owner}: {owner} is not below {room}"


def names_of_two_classes(sources: Iterable[Source]) -> Iterator[str]:
    """Public classes of the package that share a name."""
    places: dict[str, list[str]] = {}
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(source.path)
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            yield f"{paths[1]}: {paths[0]} has a class {name!r} too: name each after what it is"


def tracked_files() -> list[Path]:
    """The files of the repository; without git, what looks like them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    folders = [ROOT / name for name in ("src", "tests", "bench", "docs", "examples", "requirements", "tools")]
    return [
        path for folder in folders for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]


def _imported(source: Source) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, as a dotted name from the top."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = _resolved(source, node)
            yield node.lineno, start
            for alias in node.names:
                yield node.lineno, f"{start}.{alias.name}"


def _resolved(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = Path(source.path.removeprefix("src/")).parts[: -node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _name(node: ast.AST) -> str:
    """The last part of a name: ``b`` of ``a.b`` and of ``b[int]``."""
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _dotted(node: ast.expr) -> str:
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "?")
