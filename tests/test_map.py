"""The map in CONTRIBUTING.md names the rooms and functions that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "surehold"
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")

ROOM = re.compile(r"^([a-z_]+(?:/[a-z_]+)*) {2,}\S", re.MULTILINE)
STOP = re.compile(r"^ +(\S+\.py) +([\w.]+)$", re.MULTILINE)


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def defined_in(path: Path) -> set[str]:
    """The classes and functions of a module, methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, methods)}
    return found


def test_the_map_names_every_room() -> None:
    rooms = {
        init.parent.relative_to(SRC).as_posix()
        for init in SRC.rglob("__init__.py")
        if init.parent != SRC
    }
    assert set(ROOM.findall(section("The map"))) == rooms


def test_every_stop_of_a_walk_is_a_function_that_there_is() -> None:
    stops = STOP.findall(section("Six walks"))
    assert len(stops) > 25
    missing = [
        f"{module} {name}"
        for module, name in stops
        if not (SRC / module).exists() or name not in defined_in(SRC / module)
    ]
    assert missing == []
