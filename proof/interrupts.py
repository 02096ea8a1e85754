"""Ctrl-C at random moments in the README's loop; run as a program, it prints what it saw.

    python -m proof.interrupts COUNT MEDIUM DIRECTORY

It forks, so that a try costs milliseconds, and has no threads of its own when it does.
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

import holdfast
from holdfast.errors import Interrupted

__all__ = ["main"]

_TRIES_PER_RUN = 20
_LONGEST = 300.0
"""Seconds after which a process counts as hung."""
_AGAIN = 2.0
"""Seconds after which Ctrl-C is pressed again."""
_PAGES = [f"page-{number}" for number in range(100_000)]


def main(count: int, medium: str, directory: Path) -> None:
    """Interrupt the loop so many times; print a JSON object with what was seen."""
    chance = random.Random(f"{medium} {count}")
    address = f"{medium}{directory}/runs"
    hung, asked, items = 0, 0, 0
    wrong: list[str] = []
    for number in range(count):
        run_id = f"run-{number // _TRIES_PER_RUN}"
        begun, tell = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pid = os.fork()
        if pid == 0:
            _loop(address, run_id, directory, tell)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.close(tell)
        if number % 4:
            os.read(begun, 1)  # else it is interrupted while it starts
        os.close(begun)
        time.sleep(chance.uniform(0.0, 0.02))
        os.kill(pid, signal.SIGINT)
        hung += not _ended(pid)
        asked += _answer_all(address, run_id)
        if (number + 1) % _TRIES_PER_RUN == 0 or number + 1 == count:
            done = _items_of(address, run_id)
            items += len(done)
            if done != _PAGES[: len(done)]:
                wrong.append(f"{run_id}: {len(done)} items are not the first ones")
    failed = directory / "failed"
    wrong += failed.read_text().splitlines() if failed.exists() else []
    print(json.dumps({"hung": hung, "wrong": wrong, "items": items, "asked": asked}))


def _loop(address: str, run_id: str, directory: Path, tell: int) -> None:
    """The README's loop, in a process that was forked for it."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with holdfast.run(run_id, storage=address) as run:
            for number, page in enumerate(run.each(_PAGES)):
                if number and tell:  # an item is done
                    os.close(tell)
                    tell = 0
                run.state[page] = run.call(str.upper, page)
    except (KeyboardInterrupt, Interrupted):
        pass
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        with (directory / "failed").open("a") as file:
            file.write(f"{type(error).__name__}: {error} ({where.name}:{where.lineno})\n")
    finally:
        os._exit(0)


def _ended(pid: int) -> bool:
    """Wait for the end of a process, pressing Ctrl-C again now and then.

    Python ignores an exception that a signal raises inside a destructor or a weak reference.
    """
    until = time.monotonic() + _LONGEST
    again = time.monotonic() + _AGAIN
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        if time.monotonic() > again:
            os.kill(pid, signal.SIGINT)
            again += _AGAIN
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _answer_all(address: str, run_id: str) -> int:
    """Permit the calls that were interrupted to be made again; gives their number."""
    with holdfast.CheckpointManager(address) as manager:
        if manager.reader.run(run_id) is None:
            return 0
        waiting = holdfast.pending(run_id, storage=manager)
        for one in waiting:
            holdfast.answer(run_id, one.id, repeat=True, storage=manager)
    return len(waiting)


def _items_of(address: str, run_id: str) -> list[str]:
    with holdfast.CheckpointManager(address) as manager:
        run = manager.reader.run(run_id)
        state = manager.resume_from_latest(run_id) if run is not None else None
    return [*state] if isinstance(state, holdfast.State) else []


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
