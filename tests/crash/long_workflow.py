"""A workflow of many steps that is killed again and again until it is completed.

    python -m tests.crash.long_workflow BASE STEPS KILLS SEED

Every execution of a step is a line of the file ``executed``: its number and idempotency key.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import traceback
from pathlib import Path

import surehold

_LATEST = 500
"""Bytes after which the kill no longer waits for its moment."""


def execute(base: Path, steps: int, dies_at: int | None, after: float) -> None:
    """Execute the workflow; *after* the file has *dies_at* bytes, the process is killed."""
    executed = os.open(base / "executed", os.O_RDWR | os.O_APPEND | os.O_CREAT)

    armed: list[bool] = []

    @surehold.step(in_doubt="retry")
    def work(number: int, idempotency_key: str) -> int:
        os.write(executed, f"{number} {idempotency_key}\n".encode())
        past = -1 if dies_at is None else os.fstat(executed).st_size - dies_at
        if past >= _LATEST:  # the timer had no turn on a busy machine
            os.kill(os.getpid(), signal.SIGKILL)
        elif past >= 0 and not armed:
            armed.append(True)
            timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
        return number

    @surehold.workflow
    def long(steps: int) -> int:
        return sum(work(number) for number in range(steps))  # type: ignore[call-arg]

    result = long.run(steps, run_id="long", storage=f"sqlite:///{base}/runs.db")
    assert result.value == sum(range(steps)) and result.step == steps


def main() -> None:
    base, steps, wanted = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(sys.argv[4])
    kills, executed = 0, base / "executed"
    executed.touch()
    while True:
        # Once it has done some new steps, so that the kills are spread over the run.
        share = executed.stat().st_size + chance.randrange(1, 2 + 50 * steps // wanted)
        child = os.fork()
        if child == 0:
            try:
                execute(base, steps, share if kills < wanted else None, chance.random() / 1000)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(70)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0, status
            break
        kills += 1
    print(json.dumps({"kills": kills}))


if __name__ == "__main__":
    main()
