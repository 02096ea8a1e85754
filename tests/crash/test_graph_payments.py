"""A payment server on loopback that counts idempotency keys, and kills around the call.

1,000 kills for each policy with SUREHOLD_FULL=1.
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

ROUNDS = times(10, 1_000)


def rounds_of(policy: str, bank: Bank, base: Path) -> Any:
    program = Path(__file__).with_name("graph_payments.py")
    done = subprocess.run(
        [sys.executable, str(program), str(base), str(bank.port), policy, str(ROUNDS)],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    assert len(rounds) == ROUNDS
    for one in rounds:
        assert one["status"] == 0 and one["last"] == "completed", (one, done.stderr)
    return rounds


@pytest.mark.timeout(3600)
def test_ask_never_charges_twice(bank: Bank, tmp_path: Path, finding: Callable[..., None]) -> None:
    rounds = rounds_of("ask", bank, tmp_path)
    for one in rounds:
        assert one["killed"]
        assert len(bank.requests[one["run_id"]]) == 1, one
        in_doubt = one["point"] in ("intent+", "call-", "call+", "outcome-")
        assert (one["first"] == "parked") is in_doubt, one
    assert len(bank.charges) == ROUNDS
    parked = sum(one["first"] == "parked" for one in rounds)
    finding("SIGKILL around a payment, ask", ROUNDS, f"0 charged twice, {parked:,} asked a person")


@pytest.mark.timeout(3600)
def test_retry_repeats_only_with_the_same_key(
    bank: Bank, tmp_path: Path, finding: Callable[..., None]
) -> None:
    rounds = rounds_of("retry", bank, tmp_path)
    repeated = 0
    for one in rounds:
        assert one["first"] == "completed"
        assert one["killed"] is not one["point"].startswith("intent"), "retry notes no intent"
        keys = bank.requests[one["run_id"]]
        assert len(set(keys)) == 1 and len(keys) <= 2, one
        repeated += len(keys) - 1
    assert repeated == sum(one["point"] in ("call+", "outcome-") for one in rounds)
    assert len(bank.charges) == ROUNDS
    finding("SIGKILL around a payment, retry", ROUNDS, f"{repeated:,} repeated with the same key")
