"""The command itself: finding commands, options anywhere, errors as facts with a way out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Surehold, call

from surehold import errors
from surehold.cli.framework import exits
from surehold.cli.framework.base import Command
from surehold.cli.framework.exits import code_of
from surehold.cli.listing import COMMANDS, help_text, load


def test_help_fits_a_screen_and_starts_with_what_people_need_first() -> None:
    lines = help_text().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[4:10]] == [
        *("demo", "runs", "log", "show", "resume", "status")
    ]
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", help_text())


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--help", "--json"]])
def test_help_is_data(words: list[str]) -> None:
    result = call(*words)
    assert (result.code, result.out, result.err) == (0, help_text(), "")


def test_no_command_is_a_wrong_command_line() -> None:
    assert call().code == exits.USAGE
    assert call("-s", "sqlite:///x.db").code == exits.USAGE


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_tells_its_options(name: str) -> None:
    result = call(name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: surehold {name} [OPTIONS]")
    assert "--storage URL" in result.out and "--jsonl" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    command = load(name)
    assert isinstance(command, Command)
    for parameter in command.signature.parameters:
        assert parameter.kind.help, f"{name}: {parameter.name} has no help"


def test_an_unknown_command_is_told_with_the_nearest() -> None:
    result = call("rnus")
    assert result.code == exits.USAGE
    assert "did you mean runs?" in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--sotrage", "sqlite:///runs.db", "runs"],
            "'--sotrage' before the command (did you mean",
        ),
        (["-n", "5", "runs"], "'-n' before the command (options of a command follow it"),
    ],
)
def test_the_value_of_an_unknown_option_is_not_called_a_command(
    words: list[str], said: str
) -> None:
    result = call(*words)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def test_options_may_stand_before_or_after_the_command(database: Path) -> None:
    url = f"sqlite:///{database}"
    told = call("-s", url, "--json", "runs").out
    assert told == call("runs", "--json", "--storage", url).out
    assert told == call("runs", f"--storage={url}", "--json").out


def test_json_and_jsonl_together_are_refused(on: Surehold) -> None:
    assert on("runs", "--json", "--jsonl").code == exits.USAGE


@pytest.mark.parametrize(
    "words", [["log", "--nope"], ["log", "a", "b"], ["log", "-n", "x"], ["log", "-n", "0"], ["cat"]]
)
def test_a_wrong_command_line_points_to_help(on: Surehold, words: list[str]) -> None:
    result = on(*words)
    assert result.code == exits.USAGE
    assert result.out == ""
    assert "help" in result.err or "give a number" in result.err


def test_python_dash_m_and_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "surehold", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"surehold \d+\.\d+\.\d+\S*\n", done.stdout)


def test_whoever_reads_may_stop_reading(database: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "surehold", "runs", "--jsonl"],
        env=os.environ | {"SUREHOLD_STORAGE": f"sqlite:///{database}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == ""
    assert child.returncode == exits.PIPE_CLOSED


def test_a_terminal_that_knows_only_ascii_is_no_error(database: Path) -> None:
    environ = {"SUREHOLD_STORAGE": f"sqlite:///{database}", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "surehold", "tree"],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "\\u2514\\u2500 report-mon-kids" in done.stdout


def test_a_defect_is_told_without_a_traceback_unless_asked(
    on: Surehold, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("surehold.cli.commands.see.runs._table", broken)
    result = on("runs")
    assert result.code == exits.FAILED
    assert result.err.startswith("surehold: ZeroDivisionError: a defect (")
    assert "Traceback" not in result.err
    assert "Traceback" in on("runs", "--debug").err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.NotFoundError("x", run_id="r"), 4),
        (errors.ConflictError("x"), 5),
        (errors.LeaseHeldError("x"), 5),
        (exits.ConfirmationError("x"), 6),
        (errors.CorruptError("x"), 7),
        (errors.SchemaError("x"), 8),
        (errors.ShapeError("x"), 8),
        (errors.BudgetError("x"), 9),
        (errors.NotFoundError("x", storage="s"), 10),
        (errors.NotFoundError("x", scheme="s3"), 10),
        (errors.StorageUnavailableError("x"), 11),
        (errors.WrongKeyError("x"), 12),
        (errors.InDoubtError("x"), 20),
        (errors.Interrupted("x"), 20),
        (errors.Drained("x"), 130),
        (errors.StorageFullError("x"), 1),
        (errors.MissingExtraError("x"), 1),
        (errors.StepError("x"), 1),
        (ValueError("x"), 1),
    ],
)
def test_the_exit_code_says_what_kind_of_error_it_was(error: BaseException, code: int) -> None:
    assert code_of(error) == code


def test_an_unknown_command_is_told_to_programs_too() -> None:
    result = call("run", "--json")
    told = json.loads(result.err)
    assert result.code == told["code"] == exits.USAGE
    assert told["message"] == "there is no command 'run'"
    assert "did you mean" in told["hint"] and "surehold --help" in told["hint"]
