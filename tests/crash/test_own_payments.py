"""Payments in `surehold.run`, blocking and async, and in a workflow, under SIGKILL.

1,000 kills for each door and policy with SUREHOLD_FULL=1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.bank import Bank
from tests.crash.media import times

KILLS = times(3, 1_000)
PAYMENTS = 30


def killed(bank: Bank, base: Path, door: str, policy: str) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.crash.own_payments", str(base), str(bank.port)),
            *(door, policy, str(KILLS), f"{door}-{policy}"),
        ],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["kills"] >= KILLS
    return told


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", ["ask", "probe", "retry"])
@pytest.mark.parametrize("door", ["loop", "async", "workflow"])
def test_thirty_payments_are_billed_thirty_times(
    bank: Bank, tmp_path: Path, door: str, policy: str, finding: Callable[..., None]
) -> None:
    told = killed(bank, tmp_path, door, policy)
    orders = [
        f"{door}-{policy}-{run}-{number}"
        for run in range(told["runs"])
        for number in range(PAYMENTS)
    ]
    assert sorted(bank.requests) == sorted(orders)
    assert len(bank.charges) == len(orders), "one idempotency key for each payment"
    repeated = sum(len(keys) - 1 for keys in bank.requests.values())
    for order, keys in bank.requests.items():
        assert len(set(keys)) == 1, order
        assert len(keys) == 1 or policy == "retry", order
    what = {"ask": f"{told['asked']:,} asked a person", "probe": "0 asked", "retry": ""}[policy]
    said = what or f"{repeated:,} repeated with the same key"
    finding(f"SIGKILL in a {door} of {PAYMENTS} payments, {policy}", told["kills"], said)


@pytest.mark.timeout(3600)
def test_a_long_workflow_executes_a_step_again_only_if_it_was_in_flight(
    tmp_path: Path, finding: Callable[..., None]
) -> None:
    steps, kills = times(100, 1_000), times(5, 100)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.crash.long_workflow", str(tmp_path)),
            *(str(steps), str(kills), "long"),
        ],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)["kills"]
    executed: dict[str, list[str]] = {}
    for line in (tmp_path / "executed").read_text().splitlines():
        number, key = line.split()
        executed.setdefault(number, []).append(key)
    assert sorted(map(int, executed)) == [*range(steps)]
    assert all(len(set(keys)) == 1 for keys in executed.values())
    repeated = sum(len(keys) - 1 for keys in executed.values())
    assert repeated <= made
    assert made > kills // 2
    finding(f"SIGKILL in a workflow of {steps:,} steps", made, f"{repeated:,} in flight repeated")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("door", ["step", "node", "tool"])
def test_a_kill_loses_no_failed_attempt_and_repeats_no_payment(
    tmp_path: Path, door: str, finding: Callable[..., None]
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.crash.attempts", str(tmp_path), door),
            *(str(times(3, 100)), door),
        ],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    finding(f"SIGKILL between the attempts of a {door}", told["kills"], f"{told['runs']:,} runs")
