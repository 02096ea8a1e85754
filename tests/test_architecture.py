"""The layers, kept by reading the source.

```
errors < core < config < storage | checkpoint < runtime < integrations | testing < cli | web
```

An import goes only to the left. `storage` and `checkpoint` meet only in `holdfast.storage.base`:
the engine is handed a storage, and looking one up by name or address (`holdfast.storage.registry`)
is the business of whoever stands above both. `testing` may use `integrations`. The package itself
(`holdfast/__init__.py`) stands above all of these, as does `python -m holdfast`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

LAYERS = [
    {"errors"},
    {"core"},
    {"config"},
    {"storage", "checkpoint"},
    {"runtime"},
    {"integrations", "testing"},
    {"cli", "web"},
    {"", "__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

ALLOWED_SIDEWAYS = {
    ("checkpoint", "holdfast.storage.base"),
    ("testing", "holdfast.integrations"),
}

FILES_AND_NETWORK = {
    *("os", "sys", "shutil", "tempfile", "glob", "fcntl", "mmap", "sqlite3", "dbm", "shelve"),
    *("socket", "ssl", "http", "urllib", "select", "selectors", "subprocess", "signal", "logging"),
}
CLOCKS_AND_CHANCE = {"time", "calendar", "sched", "random", "secrets"}
THREADS_AND_LOOPS = {"threading", "_thread", "queue", "concurrent", "multiprocessing", "asyncio"}
BARRED_FROM_CORE = FILES_AND_NETWORK | CLOCKS_AND_CHANCE | THREADS_AND_LOOPS | {"pickle"}

LOCKS = {"Lock", "RLock"}
"""A lock guards a registry and starts nothing, so these two names of `threading` are allowed."""

THIRD_PARTY_IN_CORE = {"msgspec": None, "zstandard": {"frame"}, "cryptography": {"frame"}}
"""What core may use beyond the standard library, and in which modules; None for all of them."""

PATHS_ARE_VALUES = {"scalars"}
"""The module of core that knows pathlib's classes, as types of stored values."""

STAMP_THEMSELVES = {"state", "agent_state"}
STAMPS = {("datetime", "now"), ("uuid", "uuid4")}
"""States that a user makes stamp themselves with a time and an id of their own."""

IMPURE_CALLS = {
    ("", "open"),
    ("", "print"),
    ("", "input"),
    ("io", "open"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("uuid", "uuid1"),
    ("uuid", "uuid4"),
}


def name_of(path: Path) -> str:
    """The dotted name of the module in the file *path*."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(SRC.rglob("*.py"))}
CORE = [name for name in MODULES if name.startswith("holdfast.core")]


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def layer_of(module: str) -> str:
    _, _, below = module.partition(".")
    return below.partition(".")[0]


def imports_of(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, module and name (or "") of every import, wherever it stands.

    A string that is exactly the name of one of our modules counts as an import of it: tables for
    lazy loading are made of those.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name, "") for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    inner = f"{module}.{alias.name}"
                    yield node.lineno, *((inner, "") if inner in MODULES else (module, alias.name))
            case ast.Constant(value=str(text)) if text in MODULES and text != "holdfast":
                yield node.lineno, text, ""


def goes_left(importer: str, imported: str) -> bool:
    ours, theirs = layer_of(importer), layer_of(imported)
    return (
        ours == theirs
        or RANK[theirs] < RANK[ours]
        or any(
            ours == layer and (imported == target or imported.startswith(f"{target}."))
            for layer, target in ALLOWED_SIDEWAYS
        )
    )


def impurities(module: str, tree: ast.Module) -> Iterator[str]:
    """What in a module of core touches the world."""
    short = module.rpartition(".")[2]
    barred = IMPURE_CALLS - STAMPS if short in STAMP_THEMSELVES else IMPURE_CALLS
    for line, imported, name in imports_of(tree):
        top = imported.partition(".")[0]
        if top == "threading" and (name in LOCKS or (not name and only_locks(tree))):
            continue
        if top in BARRED_FROM_CORE or (top == "pathlib" and short not in PATHS_ARE_VALUES):
            yield f"line {line} imports {top}"
        elif (top, name) in barred:
            yield f"line {line} imports {top}.{name}"
        elif top not in sys.stdlib_module_names and top != "holdfast":
            where = THIRD_PARTY_IN_CORE.get(top, set())
            if where is not None and short not in where:
                yield f"line {line} imports {top}"
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if ("", name) in barred:
                yield f"line {node.lineno} calls {name}()"
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                if (owner, name) in barred:
                    yield f"line {node.lineno} uses {owner}.{name}"


def only_locks(tree: ast.Module) -> bool:
    return all(
        node.attr in LOCKS
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "threading"
    )


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer_of(name) for name in MODULES} <= RANK.keys()


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_only_to_the_left(module: str) -> None:
    wrong = [
        f"line {line} imports {imported}"
        for line, imported, _ in imports_of(tree_of(module))
        if imported.partition(".")[0] == "holdfast" and not goes_left(module, imported)
    ]
    assert wrong == []


@pytest.mark.parametrize("module", CORE)
def test_core_does_no_io_reads_no_clock_and_starts_no_thread(module: str) -> None:
    assert list(impurities(module, tree_of(module))) == []


@pytest.mark.parametrize("module", MODULES)
def test_imports_are_absolute(module: str) -> None:
    relative = [
        node.lineno
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_every_module_is_named_for_what_it_does() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [name for name in MODULES if vague & set(name.split("."))] == []


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("holdfast.core.state", "holdfast.errors", True),
        ("holdfast.core.state", "holdfast.core.codec", True),
        ("holdfast.errors", "holdfast.core.codec", False),
        ("holdfast.core.state", "holdfast.storage.base", False),
        ("holdfast.core.state", "holdfast", False),
        ("holdfast.checkpoint.manager", "holdfast.storage.base", True),
        ("holdfast.checkpoint.manager", "holdfast.storage", False),
        ("holdfast.checkpoint.manager", "holdfast.storage.registry", False),
        ("holdfast.checkpoint.manager", "holdfast.storage.sqlite", False),
        ("holdfast.storage.base", "holdfast.checkpoint.manager", False),
        ("holdfast.runtime.graph", "holdfast.storage.registry", True),
        ("holdfast.testing", "holdfast.integrations.langgraph", True),
        ("holdfast.integrations.langgraph", "holdfast.testing", False),
        ("holdfast.testing", "holdfast.cli", False),
        ("holdfast.cli.main", "holdfast.testing", True),
        ("holdfast", "holdfast.cli", True),
        ("holdfast.__main__", "holdfast.cli.app", True),
    ],
)
def test_the_rule_tells_left_from_right(importer: str, imported: str, allowed: bool) -> None:
    assert goes_left(importer, imported) is allowed


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "from os import path",
        "import threading\nthreading.Thread(target=f).start()",
        "from threading import Thread",
        "from time import monotonic",
        "import apsw",
        "from cryptography.hazmat.primitives.ciphers.aead import AESGCM",
        "from pathlib import Path",
        "def f():\n    import socket",
        "x = open('a')",
        "x = datetime.now(UTC)",
        "make = uuid.uuid4",
        "from uuid import uuid4",
    ],
)
def test_the_purity_rule_sees_what_it_should(source: str) -> None:
    assert list(impurities("holdfast.core.patch", ast.parse(source))) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("state", "import msgspec\nimport hashlib\nfrom holdfast.errors import UsageError"),
        ("state", "import threading\nlock = threading.Lock()"),
        ("state", "from datetime import datetime\nx = datetime.fromisoformat('2026-11-15')"),
        ("scalars", "from pathlib import Path"),
        ("frame", "import zstandard\nfrom cryptography.hazmat.primitives import ciphers"),
    ],
)
def test_the_purity_rule_lets_pure_code_pass(module: str, source: str) -> None:
    assert list(impurities(f"holdfast.core.{module}", ast.parse(source))) == []


def test_a_module_named_in_a_string_counts_as_imported() -> None:
    tree = ast.parse("TABLE = {'x': 'holdfast.storage.base', 'y': 'holdfast.nothing'}")
    assert [imported for _, imported, _ in imports_of(tree)] == ["holdfast.storage.base"]
