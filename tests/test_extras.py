"""What an extra brings is needed only where it is used, and every extra is in `all`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from surehold.agents.fleet import Fleet
from surehold.cli.commands.start import doctor
from surehold.cli.console.lines import TerminalLines
from surehold.doors.graph import GraphConfig
from surehold.errors import MissingExtraError

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))[
    "project"
]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("yaml", "prompt_toolkit"):
        monkeypatch.setitem(sys.modules, name, None)


def test_a_yaml_file_without_its_package_is_a_pip_line(bare: None, tmp_path: Path) -> None:
    line = r"PyYAML \(pip install 'surehold\[fleet\]'\)"
    (tmp_path / "workflow.yaml").write_text("workflow: {}\n", "utf-8")
    with pytest.raises(MissingExtraError, match=line):
        GraphConfig.from_file(tmp_path / "workflow.yaml")
    with pytest.raises(MissingExtraError, match=line):
        Fleet.from_yaml(tmp_path / "workflow.yaml")


def test_a_json_file_needs_no_extra(bare: None, tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text("{}", "utf-8")
    assert GraphConfig.from_file(tmp_path / "graph.json") == GraphConfig()


def test_a_console_without_its_package_is_a_pip_line(bare: None, tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'surehold\[fleet\]'"):
        TerminalLines(lambda: (), tmp_path / "history")


def test_all_installs_every_extra() -> None:
    named = {name for line in EXTRAS["all"] for name in re.findall(r"[\w-]+", line)} - {"surehold"}
    assert named == EXTRAS.keys() - {"all"}


def test_doctor_names_every_package_with_its_extras() -> None:
    declared = {"": PROJECT["dependencies"], **EXTRAS}
    del declared["all"]
    wanted: dict[str, set[str]] = {}
    for extra, lines in declared.items():
        for line in lines:
            name, options = re.match(r"([\w-]+)(\[.*?\])?", line.lower()).groups()  # type: ignore[union-attr]
            wanted.setdefault(name.replace("_", "-"), set()).add(extra)
            if "pool" in (options or ""):
                wanted.setdefault(f"{name}-pool", set()).add(extra)
    told = {one.name: {*one.extra.split(", ")} for one in doctor.read_packages()}
    assert told == wanted
