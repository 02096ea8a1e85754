"""The JSON that commands print, and the schemas that are shipped for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.cli.conftest import Surehold

from surehold.cli.commands.start.schema import make_schemas
from surehold.cli.listing import COMMANDS

CALLS = {
    "runs": "runs",
    "log": "log report-mon",
    "show": "show report-mon",
    "cat": "cat report-mon:state.facts",
    "diff": "diff report-mon@2 report-mon",
    "blame": "blame report-mon topic",
    "status": "status",
    "stats": "stats",
    "expire": "expire --older 1y -n",
    "watch": "watch crawl",
    "tree": "tree",
    "resume": "resume report-wed --yes",
    "fork": "fork crawl@2",
    "tag": "tag crawl x",
    "pin": "pin crawl",
    "group": "group checkpoint crew crawl",
    "pending": "pending",
    "approve": "approve report-wed",
    "reject": "reject report-wed",
    "answer": "answer report-wed true",
    "send": "send report-wed topic 5",
    "forget": "forget --keep-last 1 --yes",
    "prune": "prune --yes",
    "verify": "verify",
    "repair": "repair",
    "policy": "policy",
    "storage": "storage upgrade",
    "export": "export crawl -o out.surehold",
    "import": "import there.surehold --as taken",
    "copy": "copy --to sqlite:///copy.db",
    "migrate": "migrate -n",
    "costs": "costs",
    "queue": "queue",
    "init": "init",
    "doctor": "doctor",
    "completion": "completion bash",
}
ELSEWHERE = {
    "demo",
    "encrypt",
    "exec",
    "replay",
    "savings",
    "check",
    "bisect",
    "rotate-key",
    "repl",
    "selftest",
    "import-langgraph",
    "migrate-runs",
    "schema",
    "serve",
    "help",
    "ui",
    "worker",
}
"""Commands whose JSON is checked in tests of their own."""
TABLE = Path(__file__).with_name("documents.txt")
ONLY_LINES = {"export"}
"""With --json it prints the run itself."""
CODES = {"status": (1,)}
"""Not 0 or 20: a run of these failed within the last day, so they are not healthy."""


def test_every_document_has_the_shape_that_was_reviewed() -> None:
    """`python -m tests.cli.start.test_schema` writes the table again after a deliberate change."""
    assert TABLE.read_text("utf-8") == shapes()


def test_schema_prints_a_valid_schema_of_every_document(on: Surehold) -> None:
    names = on("schema").out.split()
    assert names == on("schema", "--json").json()["names"] == sorted(make_schemas())
    for name in names:
        schema = json.loads(on("schema", name).out)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["title"] == f"surehold {name}, version 1"


def test_schema_of_an_unknown_document_names_the_nearest(on: Surehold) -> None:
    result = on("schema", "statuss")
    assert result.code == 4 and "did you mean status?" in result.err


def shapes() -> str:
    """A line per document and per struct in it: its fields with their types."""
    documents, structs = {}, {}
    for name, schema in make_schemas().items():
        for title, struct in schema["$defs"].items():
            root = schema["$ref"].endswith(f"/{title}")
            fields = ", ".join(
                f"{key}: {kind(value)}"
                for key, value in struct["properties"].items()
                if not root or key not in ("type", "version")
            )
            (documents if root else structs)[name if root else title] = fields
    made = [f"{name}\n    {fields}\n" for name, fields in sorted(documents.items())]
    made += [f"{name}\n    {fields}\n" for name, fields in sorted(structs.items())]
    return "".join(made)


def kind(schema: dict[str, Any]) -> str:
    """A short name of a type."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " | ".join(map(kind, schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(repr, schema["enum"]))
    if schema.get("type") == "array":
        return f"[{kind(schema.get('items') or {})}]"
    if schema.get("type") == "object":
        return f"{{{kind(schema.get('additionalProperties') or {})}}}"
    return str(schema.get("format") or schema.get("type") or "any")


def test_every_command_is_checked_here_or_in_a_test_of_its_own() -> None:
    assert set(CALLS) | ELSEWHERE == set(COMMANDS)


@pytest.mark.parametrize("name", CALLS)
def test_json_is_one_versioned_document(on: Surehold, name: str, tmp_path: Path) -> None:
    on("export", "crawl", "-o", "there.surehold")
    if name in ONLY_LINES:
        return
    result = on(*CALLS[name].split(), "--json")
    if name == "watch":
        assert {line["type"] for line in result.lines()} == {"checkpoint"}
        return
    document = result.json()
    assert document["version"] == 1
    assert result.code in CODES.get(name, (0, 20))


@pytest.mark.parametrize("name", CALLS)
def test_jsonl_is_a_line_for_each(on: Surehold, name: str, tmp_path: Path) -> None:
    on("export", "crawl", "-o", "there.surehold")
    result = on(*CALLS[name].split(), "--jsonl")
    for line in result.lines():
        assert line["version"] == 1 and line["type"]
    assert result.code in CODES.get(name, (0, 20))


if __name__ == "__main__":
    TABLE.write_text(shapes(), "utf-8")
