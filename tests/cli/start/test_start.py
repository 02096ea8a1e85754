"""The commands to start with: demo, init, doctor, repl, selftest, completion."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pexpect
import pytest
from tests.cli.conftest import Surehold, call

from surehold.cli.listing import COMMANDS


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demo_kills_a_job_and_leaves_runs_to_look_at(here: Path) -> None:
    result = call("demo", "--json")
    document = result.json()
    assert result.code == 0
    assert document["sound"] and document["pages_read"] == 20 and document["read_twice"] <= 1
    assert document["killed_after"] >= 9
    assert document["killed_after"] < document["resumed_at"] <= document["killed_after"] + 2
    assert "SIGKILL" in result.err
    listed = call("-s", document["storage"], "runs", "--json").json()["runs"]
    assert {run["run_id"] for run in listed} == set(document["runs"])
    assert {run["status"] for run in listed} == {"completed", "failed", "waiting"}
    assert any(run["forked_from"] for run in listed)
    assert "It resumed at step" in call("demo").out  # again: its storage is created again


def test_ctrl_c_ends_the_demo_without_a_traceback(here: Path) -> None:
    script = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    script += "from surehold.__main__ import main; sys.exit(main(['demo']))"
    words = [sys.executable, "-u", "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None and "A job reads" in demo.stdout.readline()
        time.sleep(0.1)  # the job is starting
        os.killpg(demo.pid, signal.SIGINT)
        err = demo.communicate(timeout=30)[1]
    assert (demo.returncode, err) == (130, "interrupted\n")


def test_what_the_demo_suggests_can_be_pasted_into_a_shell(here: Path) -> None:
    command = Path(sys.executable).with_name("surehold")
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(here)}
    done = subprocess.run([command, "demo"], env=bare, capture_output=True, text=True, check=True)
    suggested = done.stdout.partition("Now look around:\n")[2]
    assert suggested.count(str(command)) == 5
    pasted = subprocess.run(
        ["sh", "-e"], input=suggested, env=bare, capture_output=True, text=True, check=False
    )
    assert pasted.returncode == 0, pasted.stderr
    assert "report-mon-kids" in pasted.stdout


def test_the_demo_does_not_mix_with_what_is_there(on: Surehold) -> None:
    result = on("demo")
    assert result.code == 5
    assert "a storage of its own" in result.err


def test_init_makes_a_storage_and_settings_that_name_it(here: Path) -> None:
    document = call("init", "--json").json()
    assert document["made"] == [".surehold/surehold.db", "surehold.toml"]
    settings = tomllib.loads((here / "surehold.toml").read_text())
    assert settings == {"storage": "sqlite:///.surehold/surehold.db"}
    assert call("runs").code == 0
    assert call("init").code == 5
    assert call("init", "--force").code == 0


def test_init_elsewhere_and_with_another_storage(here: Path) -> None:
    assert call("-s", "file:journals", "init", "project").code == 0
    assert (here / "project" / "journals").is_dir()
    assert tomllib.loads((here / "project/surehold.toml").read_text())["storage"] == "file:journals"


def test_settings_hold_in_the_directories_below(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("init")
    below = here / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert call("runs").code == 0
    assert not (below / ".surehold").exists()
    (storage,) = (
        one for one in call("doctor", "--json").json()["settings"] if one["name"] == "storage"
    )
    assert storage["origin"] == str(here / "surehold.toml")


def test_each_value_tells_where_it_came_from(here: Path) -> None:
    def origin(*words: str, **environ: str) -> tuple[str, str]:
        settings = call(*words, "doctor", "--json", environ=environ).json()["settings"]
        (storage,) = (one for one in settings if one["name"] == "storage")
        return storage["value"], storage["origin"]

    assert origin() == ("sqlite:///.surehold/surehold.db", "default")
    (here / "surehold.toml").write_text('storage = "sqlite:///toml.db"\n')
    assert origin() == ("sqlite:///toml.db", str(here / "surehold.toml"))
    named = {"SUREHOLD_STORAGE": "sqlite:///env.db"}
    assert origin(**named) == ("sqlite:///env.db", "SUREHOLD_STORAGE")
    assert origin("-s", "sqlite:///opt.db", **named) == ("sqlite:///opt.db", "--storage")


@pytest.mark.parametrize(
    "text", ["storage = 3\n", "store = 'x'\n", "storage = \n", "retention = 'all'\n", "\x00"]
)
def test_wrong_settings_are_refused(here: Path, text: str) -> None:
    (here / "surehold.toml").write_text(text)
    result = call("runs")
    assert result.code == 2
    assert "surehold.toml" in result.err


def test_doctor_tells_what_is_installed_and_guaranteed(on: Surehold, here: Path) -> None:
    result = on("doctor")
    assert result.code == 0
    for word in ("python", "sqlite", "msgspec", "survives crashes and power loss", "encryption"):
        assert word in result.out
    document = on("doctor", "--json").json()
    assert document["reachable"] and document["versions"]["python"] == sys.version.split()[0]
    missing = call("-s", "sqlite:///gone.db", "doctor", "--json")
    assert missing.code == 10 and not missing.json()["reachable"]
    key = {"SUREHOLD_ENCRYPTION_KEY": "ab" * 32}
    told = on("doctor", environ=key).out
    assert "ab" * 32 not in told and "on " in told


def test_a_program_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "surehold.testing.selftest", None)
    monkeypatch.delitem(sys.modules, "surehold.cli.commands.start.selftest", raising=False)
    result = call("selftest")
    assert result.code in (1, 2)
    assert "Traceback" not in result.err


# Completion


def completed(*words: str, environ: dict[str, str] | None = None) -> list[str]:
    result = call(*words, environ={"SUREHOLD_COMPLETE": "1", **(environ or {})})
    assert (result.code, result.err) == (0, "")
    return result.out.splitlines()


def test_commands_options_runs_and_tags_are_completed(database: Path) -> None:
    storage = {"SUREHOLD_STORAGE": f"sqlite:///{database}"}
    assert completed("re") == ["resume", "reject", "replay", "repair", "repl"]
    assert set(COMMANDS) <= set(completed(""))
    assert completed("forget", "--keep-l") == ["--keep-last"]
    assert completed("log", "report-w", environ=storage) == ["report-wed"]
    assert completed("show", "tag:", environ=storage) == ["tag:published"]
    assert completed("-s", storage["SUREHOLD_STORAGE"], "show", "cra") == ["crawl"]
    assert "report" in completed("log", "rep", environ=storage)
    assert completed("completion", "z") == ["zsh"]


def test_completion_makes_no_storage_and_no_noise(here: Path) -> None:
    assert completed("log", "x") == []
    assert completed("log", "x", environ={"SUREHOLD_STORAGE": "nonsense://"}) == []
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed_for_each_shell(shell: str) -> None:
    assert "SUREHOLD_COMPLETE=1" in call("completion", shell).out
    assert call("completion", shell, "--json").json()["name"] == shell
    if shutil.which(shell):
        script = call("completion", shell).out
        checked = subprocess.run([shell, "-n"], input=script, text=True, check=False)
        assert checked.returncode == 0


def test_completion_for_another_shell_is_refused() -> None:
    assert call("completion", "tcsh").code == 2


@pytest.fixture
def shell(database: Path, here: Path) -> dict[str, str]:
    """An environment in which the command is found, on the runs of the demo."""
    (here / "bin").mkdir()
    (here / "bin/surehold").write_text(f'#!/bin/sh\nexec {sys.executable} -m surehold "$@"\n')
    (here / "bin/surehold").chmod(0o755)
    paths = f"{here}/bin:{os.environ['PATH']}"
    storage = f"sqlite:///{database}"
    return os.environ | {"PATH": paths, "SUREHOLD_STORAGE": storage, "HOME": str(here)}


def test_bash_completes_run_ids(shell: dict[str, str]) -> None:
    script = call("completion", "bash").out + (
        'COMP_WORDS=(surehold log report-w)\nCOMP_CWORD=2\n_surehold\necho "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=shell, capture_output=True, text=True, check=True
    )
    assert done.stdout == "report-wed\n"


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes_run_ids(shell: dict[str, str]) -> None:
    script = "surehold completion fish | source; complete -C 'surehold log report-w'"
    done = subprocess.run(
        ["fish", "-c", script], env=shell, capture_output=True, text=True, check=True
    )
    assert done.stdout == "report-wed\n"


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_completes_run_ids(shell: dict[str, str]) -> None:
    child = pexpect.spawn(
        "zsh",
        ["-f", "-i"],
        env=shell | {"TERM": "xterm"},  # type: ignore[arg-type]
        encoding="utf-8",
        timeout=500,
    )
    # Keys are sent when the line editor says that it reads them, and it tells the line that they
    # made: how it draws the line depends on when they come.
    for line in (
        "autoload -U compinit; compinit -u -D; source <(surehold completion zsh)",
        "tell() { print -r -- 'li'ne=$BUFFER= }; zle -N tell; bindkey '^P' tell",
        "zle-line-init() { print -r -- 'edi'ting }; zle -N zle-line-init",
    ):
        child.sendline(line)
    child.expect_exact("editing")
    child.send("surehold log report-w\t\x10")
    child.expect_exact("line=surehold log report-wed =")
    child.close(force=True)
