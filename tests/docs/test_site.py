"""The documentation as a whole: nothing is missing from it, and every link leads somewhere."""

from __future__ import annotations

import ast
import codeop
import importlib
import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import surehold
from surehold import Rules, errors
from surehold.cli.listing import COMMANDS, load
from surehold.cli.settings import load_settings
from surehold.config import FILE_NAME

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES]

LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)|<img [^>]*src=\"(?P<image>[^\"]+)\"")
HEADING = re.compile(r"^#+ +(?P<title>.+)$", re.MULTILINE)
DATA = re.compile(
    r"^```(?P<form>toml|yaml|json)\b.*?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """The text of a document without its blocks of code."""
    return FENCED.sub("", path.read_text("utf-8"))


def anchors(path: Path) -> set[str]:
    """What can follow the `#` of a link to *path*, as GitHub and mkdocs both make it."""
    titles = (found["title"].lower() for found in HEADING.finditer(prose(path)))
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in titles}


def named_pages(entry: Any) -> Iterator[str]:
    """All pages that a navigation names."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from named_pages(inner)


def navigation() -> list[str]:
    return list(named_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))


def script(name: str) -> ModuleType:
    """A script that the build of the documentation runs."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leads_somewhere(path: Path, target: str) -> bool:
    if target.startswith(("https://", "mailto:")):
        return True
    file, _, anchor = target.partition("#")
    there = (path.parent / file).resolve() if file else path
    if anchor in ("only-light", "only-dark"):  # the picture of one scheme
        return there.exists()
    return there.exists() and (not anchor or anchor in anchors(there))


def test_every_link_leads_somewhere() -> None:
    broken = [
        f"{label(path)}: {target}"
        for path in DOCUMENTS
        for found in LINK.finditer(prose(path))
        if not leads_somewhere(path, target := found["target"] or found["image"])
    ]
    assert broken == []


def test_data_that_is_shown_can_be_read() -> None:
    read = {"toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}
    for path in DOCUMENTS:
        for found in DATA.finditer(path.read_text("utf-8")):
            assert read[found["form"]](found["text"]), label(path)


def test_the_settings_that_are_shown_are_those_of_the_command(tmp_path: Path) -> None:
    [shown] = DATA.finditer((DOCS / "reference" / "settings.md").read_text("utf-8"))
    (tmp_path / FILE_NAME).write_text(shown["text"], "utf-8")
    settings = load_settings(None, {}, tmp_path)
    assert settings.storage.value == "sqlite:///runs.db"
    assert settings.rules() == Rules(keep_last=20, keep_within="24h")
    assert settings.graphs.value == {"report": "report:graph"}


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(navigation()) == [page.relative_to(DOCS).as_posix() for page in PAGES]


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(page.read_text("utf-8") for page in DOCS.glob("reference/api/*.md"))
    described = re.findall(r"^::: (surehold(?:\.\w+)+)$", text, re.MULTILINE)
    assert len(described) == len({*described}), "each name stands once"
    assert {*surehold.__all__} - {name.rpartition(".")[2] for name in described} == set(), (
        "each public name stands on a page of docs/reference/api, as `::: surehold.NAME`"
    )
    assert [name for name in described if not is_there(name)] == []


def is_there(name: str) -> bool:
    """True if *name*, with dots, can be imported, or its room offers it but lacks its extra."""
    module, _, attribute = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), attribute)
    except errors.MissingExtraError:
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None
        return attribute in offered(Path(spec.origin))


def offered(room: Path) -> set[str]:
    """The names that the `__init__` of a room imports as themselves."""
    tree = ast.walk(ast.parse(room.read_text("utf-8")))
    imports = [node.names for node in tree if isinstance(node, ast.ImportFrom)]
    return {alias.name for names in imports for alias in names if alias.name == alias.asname}


def test_troubleshooting_knows_the_way_out_of_every_error() -> None:
    text = (DOCS / "troubleshooting.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| \S.* \| \S.* \|$", text, re.MULTILINE)
    assert {*errors.__all__} - {*rows} == set()


def test_the_reference_of_the_command_is_its_own_help() -> None:
    hook = script("cli_reference")
    page = (DOCS / "reference" / "cli.md").read_text("utf-8")
    text = hook.on_page_markdown(page)
    assert hook.MARK not in text
    for name in COMMANDS:
        assert f"### surehold {name}\n" in text
        assert f"Usage: surehold {name}" in text
    assert {*hook.EXAMPLES} == {*COMMANDS}


def test_the_example_of_each_command_is_one_that_the_command_takes() -> None:
    for name, line in script("cli_reference").EXAMPLES.items():
        words = shlex.split(line.partition(" || ")[0])
        assert words[:2] == ["surehold", name]
        load(name).signature.parse(words[2:])


def test_the_quick_reference_can_be_pasted_into_an_asyncio_prompt() -> None:
    read = codeop.CommandCompiler()
    read.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    blocks = PYTHON.findall((DOCS / "quick-reference.md").read_text("utf-8"))
    assert blocks
    for block in blocks:
        typed: list[str] = []
        for line in [*block.splitlines(), ""]:
            typed.append(line)
            if read("\n".join(typed)) is not None:
                typed.clear()
        assert typed == []


def test_llms_txt_links_to_pages_that_there_are() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text("utf-8"))
    assert targets
    for target in targets:
        assert (DOCS / target).with_suffix(".md").exists(), target


def test_examples_of_docstrings_become_blocks_of_code() -> None:
    fenced = script("docstrings").fenced
    before = "Adds.\n\n```\n>>> kept\n```\n\n>>> [1][0]\n1\n\nAfter."
    after = "Adds.\n\n```\n>>> kept\n```\n\n```pycon\n>>> [1][0]\n1\n```\n\nAfter."
    assert fenced(before) == after


def test_screens_are_made_by_a_script_and_fetch_nothing(tmp_path: Path) -> None:
    screens = script("screens")
    made = screens.make_screens(tmp_path / "screens")
    assert [path.stem for path in made] == list(screens.SCREENS)
    for path in made:
        text = path.read_text()
        assert text.startswith("<svg") and "@font-face" not in text
        (height,) = re.findall(r'-clip-terminal">\s*<rect .*?height="([\d.]+)"', text)
        lines = re.findall(r'<text [^>]*y="([\d.]+)"[^>]*line-[^>]*>([^<]*)<', text)
        last = max(float(y) for y, told in lines if told.replace("&#160;", " ").strip())
        assert last + 10 < float(height), "the picture would cut its last line"
    assert "report-mon-kids" in (tmp_path / "screens/runs.svg").read_text().replace("&#160;", " ")


def test_the_search_box_works_from_disk_and_fetches_nothing() -> None:
    """The plugin would load a script from another host unless it is given one of ours."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    assert {"search", "offline"} <= {name for name in settings["plugins"] if isinstance(name, str)}
    (script,) = settings["extra"]["polyfills"]
    assert "iframe-worker" in script and (DOCS / script).is_file()


def test_the_site_and_the_page_have_the_same_mark() -> None:
    mark = (ROOT / "src/surehold/web/static/icon.svg").read_bytes()
    assert (DOCS / "images/favicon.svg").read_bytes() == mark
