"""The commands that keep: forget, prune, verify, repair, policy, rotate-key."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Surehold, call

import surehold
from surehold import CheckpointManager, State


def steps(on: Surehold, run: str) -> list[int]:
    return [row["step"] for row in on("log", run, "--all", "--json").json()["checkpoints"]]


def test_forget_shows_why_each_checkpoint_stays_or_goes(on: Surehold) -> None:
    result = on("forget", "crawl", "--keep-last", "2", "--dry-run")
    assert result.code == 0
    lines = [line.split(maxsplit=4) for line in result.out.splitlines()[1:-1]]
    assert [(line[0], line[3], line[4]) for line in lines] == [
        ("crawl@5", "keep", "newest, last 1/2"),
        ("crawl@5", "keep", "last 2/2"),
        ("crawl@4", "drop", "no rule keeps it"),
        ("crawl@3", "drop", "no rule keeps it"),
        ("crawl@2", "drop", "no rule keeps it"),
        ("crawl@1", "drop", "no rule keeps it"),
    ]
    assert result.out.splitlines()[-1].startswith("keep 2, drop 4")
    assert steps(on, "crawl") == [5, 5, 4, 3, 2, 1]


def test_what_destroys_is_refused_without_a_terminal_and_without_yes(on: Surehold) -> None:
    for words in (
        ["forget", "--keep-last", "1"],
        ["forget", "crawl", "--whole-run"],
    ):
        result = on(*words)
        assert result.code == 6, words
        assert "--yes" in result.err and "--dry-run" in result.err
        assert on(*words, typed="\n").code == 6
        assert on(*words, typed="no\n").code == 6
    assert steps(on, "crawl") == [5, 5, 4, 3, 2, 1]


def test_forget_and_prune_free_the_space(on: Surehold, manager: CheckpointManager) -> None:
    state = State.new({"text": "x" * 4000}, run_id="big")
    for step in range(1, 30):
        # Every state is new as a whole, so that there are many keyframes.
        manager.save_checkpoint(state.set("text", secrets.token_hex(2000)).at(step=step))
    assert on("forget", "big", "--keep-last", "1", typed="y\n").code == 0
    assert steps(on, "big") == [29]
    planned = on("prune", "big", "-n", "--json").json()
    assert planned["bytes"] > 50_000 and planned["dry_run"]
    assert on("prune", "big").code == 6
    done = on("prune", "big", "--yes", "--json").json()
    assert (done["bytes"], done["records"]) == (planned["bytes"], planned["records"])
    assert on("prune", "big", "--yes").out == "there is nothing to free\n"
    assert on("verify", "big", "--read-data").code == 0
    assert len(on("cat", "big:state.text").out) == 4001


def test_forget_prune_does_both(on: Surehold, manager: CheckpointManager) -> None:
    for step in range(1, 30):
        manager.save_checkpoint(
            State.new({"text": secrets.token_hex(2000)}, run_id="big").at(step=step)
        )
    assert on("forget", "--keep-last", "1", "--prune", "--yes", "--json").code == 0
    assert on("prune", "-n").out == "there is nothing to free\n"


def test_rules_count_within_each_run_or_over_a_name(on: Surehold) -> None:
    document = on("forget", "--keep-last", "1", "-n", "--json").json()
    kept = [row["run_id"] for row in document["decisions"] if row["keep"] and not row["scope"]]
    assert sorted(set(kept)) == [
        "crawl",
        "report-mon",
        "report-mon-kids",
        "report-tue",
        "report-wed",
    ]
    document = on("forget", "--keep-last", "1", "--group-by", "name", "-n", "--json").json()
    kept = {row["run_id"]: row["reasons"] for row in document["decisions"] if row["keep"]}
    assert kept == {
        "crawl": ["newest", "last 1/1"],
        "report-mon-kids": ["newest", "last 1/1"],
        "report-mon": ["pin"],  # completed, and not the newest of its name
        "report-tue": ["newest"],  # failed: it can be resumed
        "report-wed": ["newest"],
    }


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--keep-within", "1d"], "within 1d"),
        (["--keep-hourly", "1"], "hourly 1/1"),
        (["--keep-daily", "7"], "daily 1/7"),
        (["--keep-weekly", "7"], "weekly 1/7"),
        (["--keep-monthly", "1"], "monthly 1/1"),
        (["--keep-yearly", "unlimited"], "yearly 1/unlimited"),
        (["--keep-every", "2"], "every 2 steps"),
        (["--keep-tag", "published"], "tag published"),
        (["--keep-status", "failed"], "status failed"),
        (["--keep-failed", "30d"], "failed within 30d"),
        (["--max-age", "1d"], "within 1d"),
    ],
)
def test_every_rule_of_restic_is_an_option(on: Surehold, words: list[str], reason: str) -> None:
    document = on("forget", *words, "-n", "--json").json()
    assert any(reason in row["reasons"] for row in document["decisions"])
    assert document["origin"] == "options"


def test_without_rules_nothing_is_dropped_and_that_is_said(on: Surehold) -> None:
    result = on("forget", "--yes")
    assert result.code == 0
    assert "nothing is dropped" in result.err and "drop 0" in result.out


def test_the_rules_of_the_settings_hold_when_none_are_given(on: Surehold, tmp_path: Path) -> None:
    (tmp_path / "surehold.toml").write_text('[retention]\nkeep-last = 3\nkeep-tags = ["x"]\n')
    shown = on("policy", "show")
    assert "keep-last     3" in shown.out and "surehold.toml" in shown.out
    document = on("policy", "--json").json()
    assert document["rules"] == {"keep-last": 3, "keep-tags": ["x"]}
    assert on("forget", "crawl", "-n", "--json").json()["forgotten"] == 3
    assert on("forget", "crawl", "--keep-last", "1", "-n", "--json").json()["forgotten"] == 5
    (tmp_path / "surehold.toml").write_text("[retention]\nkeep-lost = 3\n")
    result = on("forget", "-n")
    assert result.code == 2 and "keep_last" in result.err
    assert on("policy", "change").code == 2


def test_wrong_rules_are_refused(on: Surehold) -> None:
    assert on("forget", "--keep-last", "0").code == 2
    assert on("forget", "--keep-within", "3w").code == 2
    assert on("forget", "--keep-last", "1", "--group-by", "planet").code == 2
    assert on("forget", "--whole-run", "--yes").code == 2
    assert on("forget", "crawl", "--whole-run", "--keep-last", "1", "--yes").code == 2


def test_a_whole_run_is_deleted_by_name(on: Surehold) -> None:
    assert on("forget", "report-mon", "--whole-run", "-n").out == "report-mon would be deleted\n"
    assert on("show", "report-mon").code == 0
    document = on("forget", "report-mon", "--whole-run", "--yes", "--json").json()
    assert document["deleted_runs"] == ["report-mon"]
    assert on("forget", "report-mon", "--whole-run", "--yes").code == 4  # no prefix, no name
    ids = [run["run_id"] for run in on("runs", "--json").json()["runs"]]
    assert ids == ["report-mon-kids", "report-wed", "report-tue", "crawl"]
    assert on("verify", "--read-data").code == 0


def test_verify_says_what_is_sound(on: Surehold) -> None:
    for words in ([], ["--read-data"], ["crawl"]):
        result = on("verify", *words)
        assert result.code == 0 and "sound" in result.out
    document = on("verify", "--read-data", "--json").json()
    assert document["sound"] and len(document["runs"]) == 5


def damage(database: Path) -> None:
    """Flip a bit in the newest body of a run, as a disk would."""
    data = bytearray(database.read_bytes())
    at = data.rfind(b"Kelp grows half")
    assert at > 0
    data[at] ^= 1
    database.write_bytes(data)


def test_damage_is_found_named_and_repaired(on: Surehold, database: Path) -> None:
    damage(database)
    result = on("verify", "--read-data")
    assert result.code == 7
    assert "damaged" in result.out and "surehold repair" in result.err
    planned: Any = on("repair", "-n", "--json").json()
    assert not planned["clean"] and (planned["medium"] or planned["runs"])
    assert on("repair").code == 6
    assert on("repair", "--yes").code == 0
    assert on("repair", "-n", "--json").json()["clean"]
    assert on("verify", "--read-data").code == 0


def test_repair_of_what_is_sound_does_nothing(on: Surehold) -> None:
    assert on("repair").out == "nothing is damaged\n"
    assert on("repair", "crawl", "--json").json()["clean"]
    assert on("repair", "nope").code == 4


def test_keys_are_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        path.write_text(secrets.token_hex(32))
    address = f"sqlite:///{tmp_path}/secret.db"
    with CheckpointManager(address, encryption_key=old) as manager:
        for run in ("a", "b"):
            manager.save_checkpoint(State.new({"diary": "kelp"}, run_id=run))
    monkeypatch.setenv("SUREHOLD_ENCRYPTION_KEY_FILE", str(new))
    assert call("-s", address, "show", "a").code == 12
    environ = {"SUREHOLD_ENCRYPTION_KEY_FILE": str(new)}
    words = ["-s", address, "rotate-key", "--old-key-file", str(old)]
    rotated = call(*words, "--json", environ=environ)
    assert rotated.json()["runs"] == 2
    again = call(*words, environ=environ)
    assert again.out == "0 of 2 runs changed keys\n"
    assert call("-s", address, "cat", "a:state.diary").out == "kelp\n"
    monkeypatch.delenv("SUREHOLD_ENCRYPTION_KEY_FILE")
    refused = call("-s", address, "rotate-key")
    assert refused.code == 2 and "--old-key-file" in refused.err


def test_clear_runs_are_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    key.write_text(secrets.token_hex(32))
    address = f"sqlite:///{tmp_path}/clear.db"
    with CheckpointManager(address) as manager:
        for run in ("a", "b"):
            manager.save_checkpoint(State.new({"diary": "kelp"}, run_id=run))
    words = ["-s", address, "encrypt", "--scratch", str(tmp_path / "scratch")]
    refused = call(*words)
    assert refused.code == 2 and "SUREHOLD_ENCRYPTION_KEY" in refused.err
    environ = {"SUREHOLD_ENCRYPTION_KEY_FILE": str(key)}
    monkeypatch.setenv("SUREHOLD_ENCRYPTION_KEY_FILE", str(key))
    clear = call("-s", address, "show", "a")
    assert clear.code == 12 and "surehold encrypt a" in clear.err
    assert call("-s", address, "verify", "--read-data").code == 0
    assert call(*words, "a", "--json", environ=environ).json()["runs"] == ["a"]
    assert call(*words, environ=environ).out == "1 of 2 runs encrypted\n"
    assert call("-s", address, "cat", "b:state.diary").out == "kelp\n"


def test_an_encryption_is_no_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"sqlite:///{tmp_path}/clear.db"
    with CheckpointManager(address) as manager:
        manager.save_checkpoint(State.new({"n": 1}, run_id="plain").at(step=1))
        with surehold.run("loop", storage=manager) as run:
            run.checkpoint(n=1)
    monkeypatch.setenv("SUREHOLD_ENCRYPTION_KEY", secrets.token_hex(32))
    scratch = ("--scratch", str(tmp_path / "scratch"))
    assert call("-s", address, "encrypt", *scratch).out == "2 of 2 runs encrypted\n"
    assert call("-s", address, "stats", "--json").json()["resumes"] == []
    shown = call("-s", address, "runs", "--json").json()["runs"]
    assert {one["run_id"]: one["status"] for one in shown} == {
        "plain": "saved",
        "loop": "completed",
    }
    assert call("-s", address, "status").code == 0


def test_forget_states_what_prune_frees(on: Surehold, manager: CheckpointManager) -> None:
    for step in range(1, 30):
        state = State.new({"text": secrets.token_hex(2000)}, run_id="big")
        manager.save_checkpoint(state.at(step=step))
    planned = on("forget", "--keep-last", "1", "-n", "--json").json()["freed_bytes"]
    done = on("forget", "--keep-last", "1", "--yes")
    assert "would" not in done.out and "dropped" in done.out and "surehold prune frees" in done.out
    assert on("prune", "-n", "--json").json()["bytes"] == planned > 50_000


def test_forget_says_when_prune_frees_nothing_yet(on: Surehold) -> None:
    said = on("forget", "crawl", "--keep-last", "1", "--yes").out
    assert said.startswith("dropped 5 checkpoints of 1 run, kept 1 (prune frees nothing yet")
    assert on("prune", "-n").out == "there is nothing to free\n"


def test_forget_of_a_long_run_prints_a_bounded_plan(
    on: Surehold, manager: CheckpointManager
) -> None:
    for step in range(1, 101):
        manager.save_checkpoint(State.new({"n": step}, run_id="long").at(step=step))
    lines = on("forget", "long", "--keep-last", "1", "-n").out.splitlines()
    assert len(lines) == 1 + 40 + 2
    assert lines[-2] == "... 60 more; --jsonl lists all"
    assert len(on("forget", "long", "--keep-last", "1", "-n", "--jsonl").lines()) == 100


def test_the_effects_of_dropped_steps_are_not_shown(on: Surehold) -> None:
    assert "search@3" in on("log", "report-mon").out
    on("pin", "report-mon@3", "--remove")
    assert on("forget", "report-mon", "--keep-last", "1", "--yes").code == 0
    said = on("log", "report-mon", "--all").out
    assert "search@3" not in said and "write@5" not in said and "approve@6" in said


def test_a_run_that_a_live_process_holds_is_not_deleted(on: Surehold, database: Path) -> None:
    with surehold.run("live", storage=f"sqlite:///{database}") as run:
        run.checkpoint(n=1)
        refused = on("forget", "live", "--whole-run", "--yes")
        assert refused.code == 5 and "surehold watch live" in refused.err
        assert on("show", "live").code == 0
    assert on("forget", "live", "--whole-run", "--yes").code == 0


def test_nothing_of_a_run_that_a_live_process_holds_is_dropped(
    on: Surehold, database: Path
) -> None:
    with surehold.run("live", storage=f"sqlite:///{database}") as run:
        for n in range(3):
            run.checkpoint(n=n)
        assert "live" in on("forget", "live", "--keep-last", "1", "--dry-run").out.split()
        assert on("forget", "--keep-last", "1", "--yes").code == 0
        assert steps(on, "live") == [3, 2, 1]
    assert on("forget", "live", "--keep-last", "1", "--yes").code == 0
    assert len(steps(on, "live")) == 1
