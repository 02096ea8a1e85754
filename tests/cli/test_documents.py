"""The JSON that commands print, and the schemas that are shipped for it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from tests.cli.conftest import Holdfast

from holdfast.cli.app import COMMANDS
from holdfast.cli.schemas import FOLDER, make_schemas, read_schema

CALLS = {
    "runs": "runs",
    "log": "log report-mon",
    "show": "show report-mon",
    "cat": "cat report-mon:state.facts",
    "diff": "diff report-mon@2 report-mon",
    "blame": "blame report-mon topic",
    "status": "status",
    "stats": "stats",
    "watch": "watch crawl",
    "tree": "tree",
    "resume": "resume report-wed --yes",
    "fork": "fork crawl@2",
    "tag": "tag crawl x",
    "pin": "pin crawl",
    "pending": "pending",
    "approve": "approve report-wed",
    "reject": "reject report-wed",
    "answer": "answer report-wed true",
    "forget": "forget --keep-last 1 --yes",
    "prune": "prune --yes",
    "verify": "verify",
    "repair": "repair",
    "policy": "policy",
    "export": "export crawl -o out.holdfast",
    "import": "import there.holdfast --as taken",
    "copy": "copy --to sqlite:///copy.db",
    "migrate": "migrate -n",
    "init": "init",
    "doctor": "doctor",
    "completion": "completion bash",
}
ELSEWHERE = {"demo", "rotate-key", "repl", "selftest", "import-langgraph"}
"""Commands whose JSON is checked in tests of their own."""
ONLY_LINES = {"export"}
"""With --json it prints the run itself."""


def test_the_schemas_that_are_shipped_are_those_of_the_documents() -> None:
    made = make_schemas()
    assert {path.stem for path in FOLDER.glob("*.json")} == set(made)
    for name, schema in made.items():
        written = json.loads(json.dumps(schema))
        assert read_schema(name) == written, "python -m holdfast.cli.schemas writes them anew"
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_command_is_checked_here_or_in_a_test_of_its_own() -> None:
    assert set(CALLS) | ELSEWHERE == set(COMMANDS)


@pytest.mark.parametrize("name", CALLS)
def test_json_is_one_versioned_document(on: Holdfast, name: str, tmp_path: Path) -> None:
    on("export", "crawl", "-o", "there.holdfast")
    if name in ONLY_LINES:
        return
    result = on(*CALLS[name].split(), "--json")
    if name == "watch":
        assert {line["type"] for line in result.lines()} == {"checkpoint"}
        return
    document = result.json()
    assert document["version"] == 1
    assert result.code in (0, 20)


@pytest.mark.parametrize("name", CALLS)
def test_jsonl_is_a_line_for_each(on: Holdfast, name: str, tmp_path: Path) -> None:
    on("export", "crawl", "-o", "there.holdfast")
    result = on(*CALLS[name].split(), "--jsonl")
    for line in result.lines():
        assert line["version"] == 1 and line["type"]
    assert result.code in (0, 20)
