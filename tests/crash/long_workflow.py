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
import time
import traceback
from pathlib import Path

import surehold


def execute(base: Path, steps: int) -> None:
    executed = os.open(base / "executed", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @surehold.step(in_doubt="retry")
    def work(number: int, idempotency_key: str) -> int:
        os.write(executed, f"{number} {idempotency_key}\n".encode())
        return number

    @surehold.workflow
    def long(steps: int) -> int:
        return sum(work(number) for number in range(steps))  # type: ignore[call-arg]

    result = long.run(steps, run_id="long", storage=f"sqlite:///{base}/runs.db")
    assert result.value == sum(range(steps)) and result.step == steps


def _ended(child: int) -> bool:
    """True if the process has ended, by itself."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def main() -> None:
    base, steps, wanted = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(sys.argv[4])
    kills, executed = 0, base / "executed"
    executed.touch()
    while True:
        child = os.fork()
        if child == 0:
            try:
                execute(base, steps)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(70)
        if kills < wanted:
            # Once it has done some new steps, so that the kills are spread over the run.
            share = executed.stat().st_size + chance.randrange(1, 2 + 50 * steps // wanted)
            while executed.stat().st_size < share and not _ended(child):
                time.sleep(0.0005)
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                kills += 1
                continue
            assert status == 0, status
            break
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        break
    print(json.dumps({"kills": kills}))


if __name__ == "__main__":
    main()
