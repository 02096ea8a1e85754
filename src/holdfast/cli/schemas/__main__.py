"""Writes the schemas anew."""

from __future__ import annotations

import json

from holdfast.cli.schemas import FOLDER, make_schemas

if __name__ == "__main__":
    for name, schema in make_schemas().items():
        (FOLDER / f"{name}.json").write_text(json.dumps(schema, indent=2) + "\n")
