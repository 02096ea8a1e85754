"""`python -m proof` tells what was tried and fails where it must; the trials work on other
libraries as well, and Surehold holds in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from proof.peers.stores import STORES, Store
from proof.peers.table import ours_hold, show, try_all
from proof.peers.trials import TRIALS
from proof.plan import PROOFS
from proof.rows import Row, as_json, merged, passed
from proof.rows import show as show_rows
from proof.running import Collector, with_control

ROOT = Path(__file__).parents[2]
# DBOS is only in the environment of `make proof`.
INSTALLED = [store for store in STORES if store.version]


def prove(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "proof", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "SUREHOLD_FULL"},
    )


def test_a_proof_tells_what_was_tried_and_that_its_control_went_wrong() -> None:
    done = prove("fuzz", "--short", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    rows: list[dict[str, Any]] = told["proofs"]
    assert {row["outcome"] for row in rows} == {"ok"}
    assert sum(row["control"] for row in rows) == 1
    assert all(row["times"] > 0 and row["seen"] for row in rows)
    assert told["peers"] is None


def report(outcome: Any, longrepr: Any = None, **facts: Any) -> pytest.TestReport:
    where = ("tests/crash/test_kills.py", 1, "test")
    properties = [("finding", facts)] if facts else []
    return pytest.TestReport(
        "tests/crash/test_kills.py::test_it[sqlite]",
        where,
        {},
        outcome,
        longrepr,
        "call",
        user_properties=properties,
    )


def test_a_test_that_fails_or_is_skipped_has_a_row_that_says_why() -> None:
    collector = Collector("kills")
    facts = {"tried": "SIGKILL", "times": 9, "seen": "0 lost", "control": False, "worst": {}}
    collector.pytest_runtest_logreport(report("passed", **facts))
    collector.pytest_runtest_logreport(report("failed", "step 3 of run a was lost\nmore"))
    skipped = ("tests/crash/test_kills.py", 1, "Skipped: no strace")
    collector.pytest_runtest_logreport(report("skipped", skipped))
    assert collector.rows == [
        Row("kills", "SIGKILL", 9, "0 lost"),
        Row("kills", "test_it[sqlite]", seen="step 3 of run a was lost", outcome="failed"),
        Row("kills", "test_it[sqlite]", seen="no strace", outcome="skipped"),
    ]


def test_a_proof_without_its_control_has_failed() -> None:
    seen = [Row("kills", "SIGKILL", 9, "0 lost")]
    assert not passed(with_control("kills", seen))
    assert passed(with_control("kills", [*seen, Row("kills", "too early", 8, control=True)]))
    assert passed(with_control("bombs", [Row("bombs", "a bomb", 9)]))
    assert not passed(with_control("bombs", []))


def test_an_unknown_proof_is_refused() -> None:
    done = prove("nothing")
    assert done.returncode == 2
    assert "kills" in done.stderr


def test_every_proof_names_tests_that_are_there_and_have_a_control() -> None:
    for name, proof in PROOFS.items():
        named = [path.partition("::") for path in proof.tests]
        texts = [(ROOT / path).read_text() for path, _, _ in named]
        assert all(test in text for (_, _, test), text in zip(named, texts, strict=True)), name
        assert any("finding(" in text for text in texts), name
        assert any("control=True" in text for text in texts) is proof.control, name


def test_rows_of_the_same_try_are_one_with_the_worst_of_all() -> None:
    first = Row("bombs", "a bomb", 1, "in {seconds} s", worst={"seconds": 1.0})
    second = Row("bombs", "a bomb", 1, "in {seconds} s", worst={"seconds": 3.0})
    failed = Row("bombs", "a bomb", seen="it was let in", outcome="failed")
    (row, wrong) = merged([first, second, failed])
    assert (row.times, row.text()) == (2, "in 3.0 s")
    assert not passed([row, wrong]) and passed([row])
    assert as_json([row])[0]["seen"] == "in 3.0 s"


def test_the_table_shows_promises_controls_and_failures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        Row("kills", "SIGKILL", 10_000, "0 lost"),
        Row("kills", "too early", 8, "8 noticed", control=True),
        Row("kills", "a test", seen="it failed", outcome="failed"),
        Row("kills", "another", seen="no strace", outcome="skipped"),
    ]
    show_rows({"kills": "nothing is lost"}, rows)
    printed = capsys.readouterr().out
    for word in ("nothing is lost", "10,000", "must go wrong", "PASS", "FAIL", "SKIP", "no strace"):
        assert word in printed


@pytest.mark.parametrize("store", INSTALLED, ids=lambda store: store.module.rpartition(".")[2])
def test_the_trials_work_on_every_store(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    seen = try_all(store, {trial: few for trial, (_, few, _) in TRIALS.items()})
    compared = {
        "stores": [{"name": store.name, "version": store.version, "settings": store.settings}],
        "trials": [
            {"trial": trial, "times": 1, "seen": {store.name: {"words": s.words, "holds": s.holds}}}
            for trial, s in seen.items()
        ],
    }
    assert not any("failed" in result.words for result in seen.values()), capsys.readouterr().err
    assert ours_hold(compared)
    show(compared)
    printed = capsys.readouterr().out
    assert store.version in printed and "acknowledged" in printed
