"""JSON Schemas of what the commands print with --json: one file for each type of document.

``python -m holdfast.cli.schemas`` writes them anew from the classes of documents.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.framework import Document

__all__ = ["FOLDER", "make_schemas", "read_schema"]

FOLDER = Path(__file__).parent
_GROUPS = ("see", "act", "keep", "move", "start")
_FORM = "https://json-schema.org/draft/2020-12/schema"


def make_schemas() -> dict[str, dict[str, Any]]:
    """The schema of every document, by its type."""
    for group in _GROUPS:
        import_module(f"holdfast.cli.commands.{group}.documents")
    made: dict[str, dict[str, Any]] = {}
    for kind in Document.__subclasses__():
        name = next(f.default for f in msgspec.structs.fields(kind) if f.name == "type")
        schema = msgspec.json.schema(kind)
        schema["$defs"][kind.__name__]["required"] += ["type", "version"]
        made[name] = {"$schema": _FORM, "title": f"holdfast {name}, version 1", **schema}
    return made


def read_schema(name: str) -> dict[str, Any]:
    """The schema that is shipped for a type of document."""
    tree: dict[str, Any] = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes())
    return tree
