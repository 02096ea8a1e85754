"""The layers and rooms, kept by reading the source.

```
errors < core < config < storage < engine < doors < agents
       < executors | integrations < views | testing | demo < cli | web
```

An import goes only to the left; lazy imports and those for types count. `engine` knows of `storage`
only the port, the registry that opens one by its address, and SQLite as the form of an exported
run. `web` and `cli` show what `views` reads and do not import each other; `surehold.__main__` hands
the page to the command line. `compat` and the package itself stand above all.

A room is a package inside a layer, or a module that stands in the layer itself. Rooms have an order
as layers do (`ROOMS`), from left to right. Code outside a room imports only what its `__init__`
offers.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

LAYERS = [
    {"errors"},
    {"lazy", "forks"},
    {"core"},
    {"config"},
    {"storage"},
    {"engine"},
    {"doors"},
    {"agents"},
    {"executors", "integrations"},
    {"views", "testing", "demo"},
    {"cli", "web", "client"},
    {"compat"},
    {"", "__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

ROOMS = {
    "core": "plain driving context closing values cards records state policy",
    "storage": "process addresses abilities notifications retries base queueing io shared"
    " rows memory sqlite files postgres redis objects cloud cosmos replicated registry",
    "engine": "metrics hooks crypto journal retention repair commit transfer"
    " leases managers runs groups",
    "doors": "checks result resume submit events graph functions loop",
    "agents": "models tools agent fleet resilient",
    "integrations": "branching managed type_learning journal_text item_lists calls checkpoint_files"
    " agent_framework claude_agent langgraph mcp openai_agents pydantic_ai strands recorder"
    " pytest_plugin",
    "executors": "driving queue_control schedules worker_metrics local serving starting moving"
    " worker ray temporal",
    "views": "words documents costs forks timeline runs stats waiting queues band health values run"
    " comparison finder forgetting",
    "demo": "graph job runs",
    "testing": "journal scripted contract selftest",
    "cli": "settings framework listing changes entries console commands app",
    "web": "forms markdown drawing sessions live guard rendering site single_file api pages actions"
    " application server service",
}
PORT = {
    ("engine", "surehold.storage.base"),
    ("engine", "surehold.storage.queueing"),
    ("engine", "surehold.storage.registry"),
    # An exported run is a storage in one file.
    ("engine.transfer", "surehold.storage.sqlite"),
}
"""All of `storage` that rooms of `engine` may import."""
MOST_MODULES = 15

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

KNOW_MODULES = {"classes", "objects"}
"""Modules of core that look up what this process has imported already, and import nothing."""

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
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


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
            case ast.Constant(value=str(text)) if text in MODULES and text != "surehold":
                yield node.lineno, text, ""


@cache
def our_imports() -> list[tuple[str, str, str]]:
    """Importer with its line, imported module and name, for every import of one of our modules."""
    return [
        (f"{module}:{line}", imported, name)
        for module in MODULES
        for line, imported, name in imports_of(tree_of(module))
        if imported.partition(".")[0] == "surehold"
    ]


def goes_left(importer: str, imported: str) -> bool:
    ours, theirs = layer_of(importer), layer_of(imported)
    if (ours, theirs) == ("engine", "storage"):
        return any(
            f"{importer}.".startswith(f"surehold.{room}.")
            and f"{imported}.".startswith(f"{target}.")
            for room, target in PORT
        )
    return ours == theirs or RANK[theirs] < RANK[ours]


def stays_left_in_its_layer(importer: str, imported: str) -> bool:
    """Return False if the importer's room stands before the imported one in their layer."""
    ours, theirs = importer.split(".")[:3], imported.split(".")[:3]
    if len(ours) < 3 or len(theirs) < 3 or ours[1] != theirs[1]:
        return True
    order = ROOMS[ours[1]].split()
    if not {ours[2], theirs[2]} <= {*order}:  # which is another test's to tell
        return True
    return order.index(theirs[2]) <= order.index(ours[2])


def room_of(module: str) -> str | None:
    """The package inside a layer that *module* belongs to, or None outside of rooms."""
    package = module if module in PACKAGES else module.rpartition(".")[0]
    return package if package.count(".") >= 2 else None


@cache
def modules_offered(room: str) -> set[str]:
    """The modules that a room offers as such."""
    return {imported for _, imported, name in offered_by(room) if not name}


def offered_by(room: str) -> list[tuple[int, str, str]]:
    """The imports by which a room offers names: of its `__init__`, or of its stub."""
    stub = MODULES[room].with_suffix(".pyi")
    tree = ast.parse(stub.read_text("utf-8")) if stub.exists() else tree_of(room)
    return [one for one in imports_of(tree) if one[1].startswith("surehold.")]


def enters_a_room(importer: str, imported: str) -> bool:
    """Whether *importer* reaches past what a room offers, from outside of it."""
    room = room_of(imported)
    return (
        room is not None
        and imported != room
        and not f"{importer}.".startswith(f"{room}.")
        and imported not in modules_offered(room)
    )


def impurities(module: str, tree: ast.Module) -> Iterator[str]:
    """What in a module of core touches the world."""
    short = module.rpartition(".")[2]
    barred = IMPURE_CALLS - STAMPS if short in STAMP_THEMSELVES else IMPURE_CALLS
    for line, imported, name in imports_of(tree):
        top = imported.partition(".")[0]
        if top == "threading" and (name in LOCKS or (not name and only_locks(tree))):
            continue
        if top == "sys" and short in KNOW_MODULES:
            continue
        if top in BARRED_FROM_CORE or (top == "pathlib" and short not in PATHS_ARE_VALUES):
            yield f"line {line} imports {top}"
        elif (top, name) in barred:
            yield f"line {line} imports {top}.{name}"
        elif top not in sys.stdlib_module_names and top != "surehold":
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


def test_imports_go_only_to_the_left() -> None:
    wrong = [
        f"{importer} imports {imported}"
        for importer, imported, _ in our_imports()
        if not goes_left(importer.partition(":")[0], imported)
    ]
    assert wrong == []


def test_rooms_import_only_to_the_left() -> None:
    wrong = [
        f"{importer} imports {imported}"
        for importer, imported, _ in our_imports()
        if not stays_left_in_its_layer(importer.partition(":")[0], imported)
    ]
    assert wrong == []


def test_every_room_has_a_place_in_the_order_of_its_layer() -> None:
    there = {".".join(name.split(".")[1:3]) for name in MODULES if name.count(".") >= 2}
    listed = {f"{layer}.{room}" for layer, rooms in ROOMS.items() for room in rooms.split()}
    assert there == listed


def test_a_room_is_entered_only_through_what_its_init_offers() -> None:
    wrong = [
        f"{importer} imports {imported}"
        for importer, imported, _ in our_imports()
        if enters_a_room(importer.partition(":")[0], imported)
    ]
    assert wrong == []


def test_a_module_imports_its_neighbours_and_not_its_own_room() -> None:
    wrong = [
        f"{importer} imports {name} from {imported}"
        for importer, imported, name in our_imports()
        if name and room_of(importer.partition(":")[0]) == imported
    ]
    assert wrong == []


def test_a_room_offers_only_names_that_no_module_of_it_has() -> None:
    """A module hides an offered name of the same spelling as soon as it is imported."""
    clashes = [
        f"{room}: {name}"
        for room in PACKAGES
        for _, home, name in offered_by(room)
        if name and f"{room}.{name}" in MODULES and home != "surehold"
    ]
    assert clashes == []


def test_a_room_alone_states_what_it_offers() -> None:
    """`__all__` is for modules that users import by their own name."""
    stating = {
        module
        for module in MODULES.keys() - PACKAGES
        for node in tree_of(module).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    }
    assert stating == {
        "surehold.compat",
        "surehold.errors",
        "surehold.storage.base",
        "surehold.storage.io.resilient_io",
    }


def test_every_room_says_what_it_is_for() -> None:
    assert [name for name in PACKAGES if not ast.get_docstring(tree_of(name))] == []


def test_the_first_line_of_a_docstring_is_short_and_no_question() -> None:
    long = [
        f"{module}:{node.body[0].lineno} {first}"
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for first in (ast.get_docstring(node) or "").splitlines()[:1]
        if len(first) > 80 or first.startswith(("What ", "Whether ", "How ", "Where "))
    ]
    assert long == []


def test_no_room_is_crowded() -> None:
    modules = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    assert {str(path): count for path, count in modules.items() if count > MOST_MODULES} == {}


def test_core_does_no_io_reads_no_clock_and_starts_no_thread() -> None:
    wrong = {
        module: found
        for module in MODULES
        if layer_of(module) == "core" and (found := list(impurities(module, tree_of(module))))
    }
    assert wrong == {}


LOADED_BY_ITS_PATH = "surehold.integrations.recorder.inside"
"""The room that `surehold exec` loads into programs whose environment has no Surehold."""


def test_imports_are_absolute() -> None:
    relative = [
        f"{module}:{node.lineno}"
        for module in MODULES
        if not module.startswith(LOADED_BY_ITS_PATH)
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
        ("surehold.core.state", "surehold.errors", True),
        ("surehold.core.state", "surehold.core.values", True),
        ("surehold.errors", "surehold.core.values", False),
        ("surehold.core.state", "surehold.storage.base", False),
        ("surehold.core.state", "surehold", False),
        ("surehold.engine.managers", "surehold.storage.base", True),
        ("surehold.engine.managers", "surehold.storage", False),
        ("surehold.engine.managers", "surehold.storage.registry", True),
        ("surehold.engine.managers", "surehold.storage.sqlite", False),
        ("surehold.storage.base", "surehold.engine.managers", False),
        ("surehold.doors.graph", "surehold.storage.registry", True),
        ("surehold.testing", "surehold.integrations.langgraph", True),
        ("surehold.integrations.langgraph", "surehold.testing", False),
        ("surehold.testing", "surehold.cli", False),
        ("surehold.views.runs", "surehold.executors", True),
        ("surehold.executors", "surehold.views.runs", False),
        ("surehold.web.api", "surehold.views.runs", True),
        ("surehold.web.api", "surehold.cli.framework", False),
        ("surehold.cli.commands", "surehold.web", False),
        ("surehold.__main__", "surehold.web", True),
        ("surehold.cli.main", "surehold.testing", True),
        ("surehold", "surehold.cli", True),
        ("surehold.__main__", "surehold.cli.app", True),
    ],
)
def test_the_rule_tells_left_from_right(importer: str, imported: str, allowed: bool) -> None:
    assert goes_left(importer, imported) is allowed


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("surehold.engine.journal.append", "surehold.engine.crypto", True),
        ("surehold.engine.crypto.keys", "surehold.engine.journal", False),
        ("surehold.storage.base", "surehold.storage.shared", False),
        ("surehold.storage.shared.watching", "surehold.storage.base", True),
        ("surehold.views.runs", "surehold.views.costs", True),
        ("surehold.doors.resume.rewind", "surehold.doors.graph", False),
        ("surehold.doors.resume.rewind", "surehold.engine.managers", True),
    ],
)
def test_the_rule_knows_the_order_of_rooms(importer: str, imported: str, allowed: bool) -> None:
    assert stays_left_in_its_layer(importer, imported) is allowed


@pytest.mark.parametrize(
    ("importer", "imported", "enters"),
    [
        ("surehold.doors.graph.loop", "surehold.engine.journal.append", True),
        ("surehold.doors.graph.loop", "surehold.engine.journal", False),
        ("surehold.doors.graph.loop", "surehold.doors.graph.edges", False),
        ("surehold.doors.graph.loop", "surehold.storage.base", False),
    ],
)
def test_the_rule_knows_who_is_inside_a_room(importer: str, imported: str, enters: bool) -> None:
    assert enters_a_room(importer, imported) is enters


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
    assert list(impurities("surehold.core.patch", ast.parse(source))) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("state", "import msgspec\nimport hashlib\nfrom surehold.errors import UsageError"),
        ("state", "import threading\nlock = threading.Lock()"),
        ("state", "from datetime import datetime\nx = datetime.fromisoformat('2026-11-15')"),
        ("scalars", "from pathlib import Path"),
        ("frame", "import zstandard\nfrom cryptography.hazmat.primitives import ciphers"),
    ],
)
def test_the_purity_rule_lets_pure_code_pass(module: str, source: str) -> None:
    assert list(impurities(f"surehold.core.{module}", ast.parse(source))) == []


def test_a_module_named_in_a_string_counts_as_imported() -> None:
    tree = ast.parse("TABLE = {'x': 'surehold.storage.base', 'y': 'surehold.nothing'}")
    assert [imported for _, imported, _ in imports_of(tree)] == ["surehold.storage.base"]


def test_the_room_that_is_loaded_by_its_path_needs_only_the_standard_library() -> None:
    wrong = [
        f"{module}:{line} {imported}"
        for module in MODULES
        if module.startswith(LOADED_BY_ITS_PATH)
        for line, imported, _ in imports_of(tree_of(module))
        if imported.partition(".")[0] not in {*sys.stdlib_module_names, "aiohttp"}
    ]
    assert wrong == []


def test_no_two_public_classes_have_the_same_name() -> None:
    counts = Counter(
        node.name
        for path in sorted(Path("src/surehold").rglob("*.py"))
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in counts.items() if count > 1] == []
