"""The reference, the settings and the list of pages leave nothing out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import surehold

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = "\n".join(path.read_text("utf-8") for path in (DOCS / "reference/api").glob("*.md"))
DROP_INS = ["langgraph", "openai_agents", "pydantic_ai", "strands", "claude_agent", "mcp"]


@pytest.mark.parametrize("name", sorted(surehold._HOMES))
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert f"::: surehold.{name}\n" in f"{REFERENCE}\n"


@pytest.mark.parametrize("framework", [*DROP_INS, "agent_framework"])
def test_every_drop_in_class_is_in_the_reference(framework: str) -> None:
    room = ROOT / "src/surehold/integrations" / framework / "__init__.py"
    classes = set(re.findall(r"as (Surehold\w+)", room.read_text("utf-8")))
    assert classes
    missing = {
        name
        for name in classes
        if f"::: surehold.integrations.{framework}.{name}\n" not in f"{REFERENCE}\n"
    }
    assert not missing


def test_every_page_of_the_reference_is_in_its_index() -> None:
    index = (DOCS / "reference/index.md").read_text("utf-8")
    pages = [f"api/{path.name}" for path in (DOCS / "reference/api").glob("*.md")]
    assert [page for page in pages if f"({page})" not in index] == []


def test_every_page_is_named_for_language_models() -> None:
    """Decisions and the pages below patterns and the reference are found from their indexes."""
    listed = (DOCS / "llms.txt").read_text("utf-8")
    pages = [path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")]
    below = re.compile(r"adr/|reference/api/|patterns/(?!index)|index\.html$")
    missing = [page for page in pages if f"({page})" not in listed and not below.match(page)]
    assert missing == []


@pytest.mark.parametrize("page", ["quick-reference.md", "llms.txt"])
def test_every_extra_is_named(page: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = (DOCS / page).read_text("utf-8")
    missing = [
        extra
        for extra in project["optional-dependencies"]
        if not re.search(rf"(?<![\w-]){extra}(?![\w-])", text)
    ]
    assert missing == []


def test_every_variable_of_the_environment_is_in_the_settings() -> None:
    settings = (DOCS / "reference/settings.md").read_text("utf-8")
    used = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r'"(SUREHOLD_[A-Z_]+)"', path.read_text("utf-8"))
    }
    assert {name for name in used - INTERNAL if f"`{name}`" not in settings} == set()


INTERNAL = {"SUREHOLD_COMPLETE", "SUREHOLD_EXEC", "SUREHOLD_HELLO"}
"""What Surehold's own processes tell each other."""
