"""Figures of `make bench` that do not depend on the machine, in short form."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks import compression, group_commit, retention, size
from benchmarks.peers import PEERS, open_peers, versions
from benchmarks.report import Line, Section, best_of, show
from benchmarks.workload import BareCommits, settings_of

from surehold import SQLiteStorage


def test_a_thousand_appends_stay_within_three_times_their_content(tmp_path: Path) -> None:
    opened, closed, wrong = size.journal_sizes(tmp_path / "runs.db", check_every=25)
    assert wrong == 0
    assert closed <= 3
    assert opened <= 3.5


def test_compressed_files_take_less_and_re_packed_ones_less_than_half(tmp_path: Path) -> None:
    written, packed = compression.file_ratios(tmp_path)
    assert written <= 0.65
    assert packed <= 0.5


@pytest.mark.skipif(not group_commit.can_trace(), reason="strace is missing or may not trace")
def test_runs_that_save_at_once_share_their_syncs(tmp_path: Path) -> None:
    assert group_commit.saves_per_sync(tmp_path / "runs.db", saves=15) >= 8


def test_what_retention_leaves_is_small_however_many_saves_there_were(tmp_path: Path) -> None:
    kept = retention.kept_of(tmp_path, 1_500)
    assert kept.listed == 10
    assert kept.size <= 6 * kept.state + (1 << 20)


def test_bare_commits_are_made_with_the_settings_of_the_storage(tmp_path: Path) -> None:
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        settings = settings_of(storage)
    bare = BareCommits(tmp_path / "bare.db", settings)
    try:
        assert bare.settings() == settings
        assert (settings["journal_mode"], settings["synchronous"]) == ("wal", 2)
    finally:
        bare.close()


def test_a_peer_that_is_not_installed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("langgraph.checkpoint.sqlite", "agent_framework"):
        monkeypatch.setitem(sys.modules, module, None)
    assert open_peers(tmp_path) == dict.fromkeys(PEERS)
    assert all(name in versions() for name in PEERS)


def test_the_table_tells_what_misses_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        Line("too slow", 3.01, 3),
        Line("fast enough", 3, 3),
        Line("too few", 7.9, 8, at_least=True, unit=""),
        Line("not measured", None, 8, note="no strace"),
        Line("only shown", 99),
    ]
    assert [line.passed for line in lines] == [False, True, False, False, True]
    show([Section("speed", 0.0001, 2, lines)], [*PEERS], "where it ran")
    printed = capsys.readouterr().out
    assert printed.count("FAIL") == 3
    assert printed.count("PASS") == 1
    assert "one fsync 0.100 ms" in printed


def test_the_best_of_several_tries_counts_for_each_figure() -> None:
    first = [Line("time", 4.0, 3), Line("speed", 9.0, 8, at_least=True, note="fast")]
    second = [Line("time", 2.0, 3), Line("speed", 7.0, 8, at_least=True)]
    time, speed = best_of([first, second])
    assert (time.value, time.note, time.passed) == (2.0, "best of 2", True)
    assert (speed.value, speed.note, speed.passed) == (9.0, "fast; best of 2", True)
    assert best_of([first]) == first
    missing = Line("traced", None, 8, note="no strace")
    assert not best_of([[missing], [missing]])[0].passed
