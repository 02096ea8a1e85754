"""Every error is a fact and the command that helps, with its own exit code."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from tests.cli.conftest import Surehold, call, validator

from surehold import CheckpointManager, State

ON_A_RUN = [
    *(["log"], ["show"], ["cat"], ["diff"], ["blame"], ["watch"], ["tree"], ["resume"], ["fork"]),
    *(["tag"], ["pin"], ["pending"], ["approve"], ["reject"], ["answer"], ["forget"], ["prune"]),
    *(["verify"], ["repair"], ["export"], ["copy"], ["migrate"]),
]
MORE = {
    **{"blame": ["key"], "tag": ["x"], "answer": ["1"], "copy": ["--to", "sqlite:///to.db"]},
    **{"forget": ["--keep-last", "1"]},
}


def words_on(command: list[str], run: str) -> list[str]:
    return [*command, run, *MORE.get(command[0], [])]


def told(err: str) -> dict[str, Any]:
    """The error that was printed as JSON, checked against its schema."""
    document: dict[str, Any] = msgspec.json.decode(err.splitlines()[-1])
    validator("error").validate(document)
    return document


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fork", "crawl@2", "--as", ""], "--as is empty"),
        (["import", "pyproject.toml", "--as", ""], "--as is empty"),
        (["forget", "--keep-last", "0"], "--keep-last is 0"),
        (["forget", "--keep-within", "soon"], "--keep-within: "),
    ],
)
def test_what_is_wrong_with_an_option_is_said_of_the_option(
    on: Surehold, words: list[str], said: str
) -> None:
    result = on(*words)
    assert result.code == 2 and result.err.startswith(f"surehold: {said}")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["fork", "crawl@2", "--set", "pages"], "as in --set topic=kelp"),
        (["tag", "crawl@2", ""], "at least one character"),
    ],
)
def test_a_wrong_value_comes_with_a_right_one(on: Surehold, words: list[str], hint: str) -> None:
    result = on(*words)
    assert result.code == 2 and hint in result.err


def test_an_encrypted_run_is_named_where_its_key_is_missing(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/enc.db"
    with CheckpointManager(db, encryption_key="7" * 64) as manager:
        manager.save_checkpoint(State.new({"n": 1}, run_id="secret"))
    result = call("-s", db, "cat", "secret")
    assert result.code == 12
    assert result.err.startswith("surehold: run 'secret' is encrypted, and no key is given (set ")


@pytest.mark.parametrize("command", ON_A_RUN, ids=lambda command: command[0])
def test_no_such_run(on: Surehold, command: list[str]) -> None:
    result = on(*words_on(command, "nope"))
    assert (result.code, result.out) == (4, "")
    assert "nope" in result.err and "surehold runs" in result.err
    assert told(on(*words_on(command, "nope"), "--jsonl").err)["code"] == 4


PYTHON = re.compile(r"\w\(\)|=True|=\[|\w+_\w+=")
"""Advice for those who write Python, which does not help at a prompt."""


def test_advice_is_for_the_command_line(on: Surehold, tmp_path: Path) -> None:
    on("export", "crawl", "-o", "there.surehold")
    for words in (
        *(["show", "nope"], ["export", "crawl", "-o", "there.surehold"], ["rotate-key"]),
        *(["import", "there.surehold"], ["import", "nope.surehold"], ["fork", "report-mon"]),
        *(["resume", "crawl", "--yes"], ["answer", "crawl", "1"], ["approve", "crawl"]),
        *(["diff", "crawl", "nope"], ["repair", "nope"], ["copy", "--to", "nope://"]),
        *(["show", "0199"], ["fork", "crawl", "--as", "report-mon"], ["export", "nope"]),
    ):
        result = on(*words)
        assert result.code != 0, words
        assert not PYTHON.search(result.err), result.err


@pytest.mark.parametrize("command", ON_A_RUN, ids=lambda command: command[0])
def test_an_ambiguous_prefix(on: Surehold, command: list[str]) -> None:
    result = on(*words_on(command, "report-"))
    assert (result.code, result.out) == (2, "")
    assert "report-tue, report-mon" in result.err and "give more of the id" in result.err


READING = [
    *(["runs"], ["log"], ["show"], ["status"], ["stats"], ["tree"], ["pending"], ["verify"]),
    *(["prune"], ["forget", "--keep-last", "1"], ["repair"], ["migrate"], ["export", "r"]),
    *(["copy", "--to", "sqlite:///to.db"], ["rotate-key"]),
]


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
@pytest.mark.parametrize("url", ["sqlite:///gone.db", "file:gone", "sqlite:///a/b/gone.db"])
def test_a_missing_storage_is_told_and_not_made(
    words: list[str], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("-s", url, *words)
    assert (result.code, result.out) == (10, "")
    assert url in result.err and "surehold init" in result.err
    assert f"in {tmp_path}" in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["ftp://bucket", "nowhere", "runs.db", "sqlite://x"])
def test_a_wrong_address_is_told(url: str) -> None:
    assert call("-s", url, "runs").code in (2, 10)


def test_a_password_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = "postgresql://me:hunter2@host/db?sslpassword=hunter2"
    for words in (["runs"], ["doctor"], ["doctor", "--json"], ["status"], ["runs", "--json"]):
        for result in (
            call("-s", url, *words, "--debug"),
            call(*words, environ={"SUREHOLD_STORAGE": url}),
        ):
            assert "hunter2" not in result.out + result.err
    (tmp_path / "surehold.toml").write_text(f'storage = "{url}"\n')
    assert "hunter2" not in call("doctor").out


def test_a_locked_storage(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from surehold.storage.sqlite import storage as sqlite

    monkeypatch.setattr(
        sqlite.SQLiteStorage.__init__, "__kwdefaults__", {"compress": False, "busy_timeout": 0.05}
    )
    other = apsw.Connection(str(database))
    other.execute("BEGIN IMMEDIATE")
    try:
        result = call("-s", f"sqlite:///{database}", "tag", "crawl", "x")
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert result.code == 11
    assert "busy" in result.err or "locked" in result.err


def test_a_wrong_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"sqlite:///{tmp_path}/secret.db"
    with CheckpointManager(address, encryption_key=secrets.token_bytes(32)) as manager:
        manager.save_checkpoint(State.new({"diary": "kelp"}, run_id="mine"))
    for key in (None, secrets.token_hex(32)):
        if key is not None:
            monkeypatch.setenv("SUREHOLD_ENCRYPTION_KEY", key)
        for words in (["show", "mine"], ["log", "mine"], ["cat", "mine"]):
            result = call("-s", address, *words)
            assert result.code == 12, words
            assert "SUREHOLD_ENCRYPTION_KEY" in result.err
        assert call("-s", address, "runs").code == 0  # headers are in the clear


def test_a_damaged_storage(on: Surehold, database: Path) -> None:
    data = bytearray(database.read_bytes())
    at = data.rfind(b"Did you know? Kelp")
    data[at] ^= 1
    database.write_bytes(data)
    result = on("show", "report-mon-kids")
    assert result.code == 7
    assert "surehold verify" in result.err or "surehold repair" in result.err
    assert on("status").code == 1


def test_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("kelp " * 2000)
    result = call("-s", f"sqlite:///{tmp_path}/notes.db", "runs")
    assert result.code == 7
    assert "is not a SQLite database" in result.err


LIMITED = """
import resource, sys
from surehold.__main__ import main
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk(on: Surehold, database: Path, tmp_path: Path) -> None:
    url = f"file:{tmp_path}/small"
    on("copy", "--to", url)
    largest = max(file.stat().st_size for file in (tmp_path / "small").rglob("*.jsonl"))
    words = ["-s", url, "tag", "report-mon", "x" * 4000]
    script = LIMITED.format(limit=largest + 100)
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "surehold prune" in done.stderr and "Traceback" not in done.stderr
    assert call("-s", url, "verify", "--read-data").code == 0
    assert call(*words).code == 0  # with room again


def test_a_full_disk_under_an_export_leaves_no_file(
    on: Surehold, database: Path, tmp_path: Path
) -> None:
    on("copy", "--to", "file:there")
    words = ["-s", "file:there", "export", "report-mon", "--html", "-o", "page.html"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(limit=1000), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1 and "cannot be written" in done.stderr
    assert not list(tmp_path.glob("*page*")) and not list(tmp_path.glob(".page*"))


def test_a_storage_that_may_not_be_written(on: Surehold, database: Path, tmp_path: Path) -> None:
    target = tmp_path / "no" / "such" / "place"
    shutil.copy(database, tmp_path / "copy.db")
    result = on("export", "crawl", "--json", "-o", str(target / "x.json"))
    assert result.code == 1 and "cannot be written" in result.err
    for words in ([], ["--json"]):
        refused = on("export", "crawl", "-o", str(target / "x"), *words)
        assert f"mkdir -p {target}" in refused.err
