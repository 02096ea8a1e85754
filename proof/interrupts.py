"""Ctrl-C at random moments in the README's loop; run as a program, it prints what it saw.

    python -m proof.interrupts COUNT MEDIUM DIRECTORY

A process is interrupted many times: it starts the loop again when it is told to. It is forked, and
the one that forks has no threads of its own.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
import traceback
from pathlib import Path

import surehold
from surehold.errors import Interrupted

_TRIES_PER_RUN = 5
_TRIES_PER_PROCESS = 100
_LONGEST = 300.0
"""Seconds after which a process counts as hung."""
_AGAIN = 2.0
"""Seconds after which Ctrl-C is pressed again."""
_PAGES = [f"page-{number}" for number in range(100_000)]
_SIGINT = frozenset([signal.SIGINT])


def main(count: int, medium: str, directory: Path) -> None:
    """Interrupt the loop so many times; print a JSON object with what was seen."""
    chance = random.Random(f"{medium} {count}")
    address = f"{medium}{directory}/runs"
    hung, asked, items, wrong = 0, 0, 0, list[str]()
    victim = None
    for number in range(count):
        run_id = f"run-{number // _TRIES_PER_RUN}"
        if victim is None or number % _TRIES_PER_PROCESS == 0:
            if victim is not None:
                victim.end()
            victim = _Victim(address, directory)
        victim.start(run_id)
        begun = victim.hear(_LONGEST, b"i" if number % 4 else b"s")
        time.sleep(chance.uniform(0.0, 0.02))
        said = int(begun[1:]) if begun.startswith(b"e") else victim.interrupt()
        hung += said is None
        asked += said or 0
        if said is None or victim.ended:
            victim.end()
            victim = None
        if (number + 1) % _TRIES_PER_RUN == 0 or number + 1 == count:
            done = _items_of(address, run_id)
            items += len(done)
            if done != _PAGES[: len(done)]:
                wrong.append(f"{run_id}: {len(done)} items are not the first ones")
    if victim is not None:
        victim.end()
    failed = directory / "failed"
    wrong += failed.read_text().splitlines() if failed.exists() else []
    print(json.dumps({"hung": hung, "wrong": wrong, "items": items, "asked": asked}))


class _Victim:
    """A process that runs the loop again and again, each time until it is interrupted."""

    def __init__(self, address: str, directory: Path) -> None:
        self.ended = False
        wanted, self._tell = os.pipe()
        self._heard, say = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGINT)
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._tell)
            _serve(address, directory, wanted, say)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGINT)
        os.close(wanted)
        os.close(say)

    def start(self, run_id: str) -> None:
        os.write(self._tell, run_id.encode() + b"\n")

    def hear(self, seconds: float, wanted: bytes) -> bytes:
        """Wait for a line that begins so; what has come, empty if it has not."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._heard], [], [], left)[0]:
                line = b""
                while not line.endswith(b"\n"):
                    byte = os.read(self._heard, 1)
                    if not byte:
                        self.ended = True  # a second Ctrl-C came after the first
                        return b"e0\n"
                    line += byte
                if line.startswith((wanted, b"e")):
                    return line
        return b""

    def interrupt(self) -> int | None:
        """Press Ctrl-C until the loop ends; the number of calls in doubt, None if it hangs.

        Python ignores an exception that a signal raises inside a destructor or a weak reference.
        """
        until = time.monotonic() + _LONGEST
        while time.monotonic() < until:
            os.kill(self._pid, signal.SIGINT)
            if line := self.hear(_AGAIN, b"e"):
                return int(line[1:])
        return None

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._tell)
        os.close(self._heard)


def _serve(address: str, directory: Path, wanted: int, say: int) -> None:
    """Run the loop for each run id that is told, and tell when an item is done and at the end."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with os.fdopen(wanted) as told:
            for line in told:
                try:
                    signal.sigtimedwait(_SIGINT, 0)  # one that came after the end
                    os.write(say, b"s\n")
                    _loop(address, line.strip(), say)
                except (KeyboardInterrupt, Interrupted):
                    pass
                except BaseException as error:
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    with (directory / "failed").open("a") as file:
                        file.write(f"{type(error).__name__}: {error} ({where.name})\n")
                finally:
                    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGINT)
                os.write(say, b"e%d\n" % _answer_all(address, line.strip()))
    finally:
        os._exit(1)


def _loop(address: str, run_id: str, say: int) -> None:
    """The README's loop."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGINT)
    with surehold.run(run_id, storage=address) as run:
        for number, page in enumerate(run.each(_PAGES)):
            if number == 1:  # an item is done
                os.write(say, b"i\n")
            run.state[page] = run.call(str.upper, page)


def _answer_all(address: str, run_id: str) -> int:
    """Permit the calls that were interrupted to be made again; gives their number."""
    with surehold.CheckpointManager(address) as manager:
        if manager.reader.run(run_id) is None:
            return 0
        waiting = surehold.pending(run_id, storage=manager)
        for one in waiting:
            surehold.answer(run_id, one.id, repeat=True, storage=manager)
    return len(waiting)


def _items_of(address: str, run_id: str) -> list[str]:
    with surehold.CheckpointManager(address) as manager:
        run = manager.reader.run(run_id)
        state = manager.resume_from_latest(run_id) if run is not None else None
    return [*state] if isinstance(state, surehold.State) else []


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
