"""Runs the tests of a proof and collects what they found."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from proof.plan import PROOFS
from proof.rows import Row, merged

__all__ = ["Collector", "run", "with_control"]

_ROOT = Path(__file__).parents[1]
# All proofs run in one process, and several of their plugins import what tests share.
_AGAIN = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
_OPTIONS = ("-q", "--no-header", "-p", "no:cacheprovider", "-W", _AGAIN)


class Collector:
    """A pytest plugin: a row for every finding, for every test that failed or was skipped."""

    def __init__(self, proof: str) -> None:
        self._proof = proof
        self.rows: list[Row] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2]
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            said = reason.removeprefix("Skipped: ")
            self.rows.append(Row(self._proof, name, seen=said, outcome="skipped"))
        elif report.failed:
            self.rows.append(Row(self._proof, name, seen=_first_line(report), outcome="failed"))
        elif report.when == "call":
            for key, facts in report.user_properties:
                if key == "finding" and isinstance(facts, dict):
                    self.rows.append(Row(self._proof, **facts))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            seen = str(report.longrepr).strip().splitlines()[-1]
            self.rows.append(Row(self._proof, report.nodeid, seen=seen, outcome="failed"))


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return text.strip().splitlines()[0][:300]


def run(name: str) -> list[Row]:
    """Run the tests of a proof; what they found."""
    collector = Collector(name)
    paths = [str(_ROOT / path) for path in PROOFS[name].tests]
    # Standard output is for the table.
    with contextlib.redirect_stdout(sys.stderr):
        pytest.main([*_OPTIONS, *paths], plugins=[collector])
    return with_control(name, merged(collector.rows))


def with_control(name: str, rows: list[Row]) -> list[Row]:
    """The rows of a proof, and one that failed if nothing was tried or its control is missing."""
    if not rows:
        return [Row(name, "nothing", seen="no test was run", outcome="failed")]
    if PROOFS[name].control and not any(row.control or row.outcome == "skipped" for row in rows):
        return [*rows, Row(name, "control", seen="none was run", outcome="failed")]
    return rows
