"""The trials: each takes a store, how often to try and a place, and gives what was seen."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from tests.crash.processes import Child, ForkServer
from tests.crash.test_power import obstacle

from proof.peers.states import text_of
from proof.peers.stores import Store

__all__ = ["TRIALS", "Impossible", "Seen"]

_SAVED = 100
"""States that are there before a bit is flipped: enough that most bytes of a file are theirs."""
_PATIENCE = 60


@dataclass(frozen=True)
class Seen:
    """What a trial showed."""

    words: str
    holds: bool
    """Whether nothing was lost, silently changed, older or done twice."""


class Impossible(Exception):
    """Why a trial cannot be made here."""


def _start(server: ForkServer, store: Store, function: str, directory: Path) -> Child:
    return server.start(f"{store.module}:{function}", str(directory), begin=False)


def _start_behind(server: ForkServer, store: Store, function: str, directory: Path) -> Child:
    target = "proof.peers.clocks:behind"
    return server.start(target, store.module, function, str(directory), begin=False)


def _saves(
    server: ForkServer,
    store: Store,
    directory: Path,
    count: int,
    pause: float = 0,
    start: Callable[[ForkServer, Store, str, Path], Child] = _start,
) -> set[int]:
    """Let it save at least so often, kill it, and give the numbers that were acknowledged."""
    left = iter(range(count - 1, -1, -1))
    with start(server, store, "save_for_ever", directory) as child:
        child.begin()
        told = child.hear_until(lambda line: line[0] != "saved" or next(left) == 0, _PATIENCE)
        time.sleep(pause)
        child.kill()
        told += child.hear_all()
    return _numbers(told)


def _numbers(told: list[list[Any]]) -> set[int]:
    wrong = [line for line in told if line[0] == "crashed"]
    if wrong:
        raise RuntimeError(wrong[0][1])
    return {line[1] for line in told if line[0] == "saved"}


def _look(server: ForkServer, store: Store, directory: Path) -> list[list[Any]]:
    """What a new process finds there."""
    with _start(server, store, "look", directory) as child:
        child.begin()
        told = child.hear_all(_PATIENCE)
        if (code := child.wait()) and (not told or told[-1][0] != "crashed"):
            told.append(["crashed", f"exit code {code}"])
    return told


def _found(told: list[list[Any]]) -> dict[int, str]:
    return {line[1]: line[2] for line in told if line[0] == "found"}


def kills(server: ForkServer, store: Store, count: int, scratch: Path) -> Seen:
    """SIGKILL while it saves; what was acknowledged must be there."""
    chance = random.Random(store.name)
    acknowledged = lost = left = 0
    for number in range(count):
        directory = scratch / str(number)
        directory.mkdir()
        said = _saves(server, store, directory, chance.randint(1, 30), chance.random() * 0.01)
        found = _found(_look(server, store, directory))
        acknowledged += len(said)
        lost += sum(found.get(one) != text_of(one) for one in said)
        left += sum(".tmp" in path.name for path in directory.rglob("*"))
        shutil.rmtree(directory)
    orphans = f", {left} temporary files left" if left else ""
    return Seen(f"{acknowledged:,} acknowledged, {lost:,} lost{orphans}", not lost)


def power(server: ForkServer, store: Store, count: int, scratch: Path) -> Seen:
    """The power fails while it saves, on ext4 as it is mounted by default."""
    if why := obstacle("ext4"):
        raise Impossible(why)
    ran = subprocess.run(
        [
            *("unshare", "--mount", sys.executable, "-m", "proof.peers.power"),
            *(store.name, str(count), str(scratch)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    results = [json.loads(line) for line in ran.stdout.splitlines()]
    acknowledged = sum(said for said, _, _ in results)
    lost = sum(gone for _, gone, _ in results)
    cuts = sum(gone > 0 for _, gone, _ in results)
    worst = max((gone for _, gone, _ in results), default=0)
    errors = Counter(error for _, _, error in results if error)
    seen = f"{acknowledged:,} acknowledged, {lost:,} lost"
    if lost:
        seen += f" (in {cuts} cuts, at most {worst} in one)"
    seen += "".join(f"; {times} cuts: {error}" for error, times in errors.items())
    return Seen(seen, not lost and not errors)


def flips(server: ForkServer, store: Store, count: int, scratch: Path) -> Seen:
    """One bit of the files is flipped; a resume must fail or give what was saved."""
    sound, looked_at = scratch / "sound", scratch / "looked-at"
    sound.mkdir()
    _saves(server, store, sound, _SAVED)
    # Looking brings what a killed process left in a log into the file.
    expected = _look(server, store, sound)
    files = [path for path in sorted(sound.rglob("*")) if path.is_file() and path.stat().st_size]
    bits = [(path, bit) for path in files for bit in range(8 * path.stat().st_size)]
    found: Counter[str] = Counter()
    for path, bit in random.Random(store.name).sample(bits, min(count, len(bits))):
        shutil.copytree(sound, looked_at)
        damaged = looked_at / path.relative_to(sound)
        data = bytearray(damaged.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        damaged.write_bytes(data)
        found[_verdict(_look(server, store, looked_at), expected)] += 1
        shutil.rmtree(looked_at)
    kinds = ("detected", "silent", "without effect")
    return Seen(", ".join(f"{found[kind]:,} {kind}" for kind in kinds), not found["silent"])


def _verdict(told: list[list[Any]], expected: list[list[Any]]) -> str:
    if sorted(told) == sorted(expected):
        return "without effect"
    # An error tells of it, if what was given before is what was saved.
    crashed = bool(told) and told[-1][0] == "crashed"
    sound = all(line in expected for line in told if line[0] != "crashed")
    return "detected" if crashed and sound else "silent"


def clock(server: ForkServer, store: Store, count: int, scratch: Path) -> Seen:
    """A process whose clock is an hour behind goes on; the newest state must be what it saved."""
    if util.find_spec("time_machine") is None:
        raise Impossible("time-machine is not installed")
    older = 0
    for number in range(count):
        directory = scratch / str(number)
        directory.mkdir()
        said = _saves(server, store, directory, 3)
        said |= _saves(server, store, directory, len(said) + 3, start=_start_behind)
        told = _look(server, store, directory)
        latest = next(line for line in told if line[0] == "latest")
        older += latest[1] < max(said)
        shutil.rmtree(directory)
    return Seen(f"{older} of {count} resumed an older state", not older)


def resumes(server: ForkServer, store: Store, count: int, scratch: Path) -> Seen:
    """Two processes resume one killed run at once; its step must act once."""
    acted: Counter[int] = Counter()
    for number in range(count):
        directory = scratch / str(number)
        directory.mkdir()
        with _start(server, store, "begin", directory) as child:
            child.begin()
            told = child.hear_until(lambda line: line[0] == "acted", _PATIENCE)
            if told[-1][0] != "acted":
                raise RuntimeError(told[-1])
            os.kill(child.pid, signal.SIGKILL)
        with (
            _start(server, store, "resume", directory) as one,
            _start(server, store, "resume", directory) as two,
        ):
            one.begin()
            two.begin()
            lines = [*one.hear_all(_PATIENCE), *two.hear_all(_PATIENCE)]
        acted[sum(line[0] == "acted" for line in lines)] += 1
        shutil.rmtree(directory)
    words = ", ".join(f"{acted[often]} acted {often} times" for often in sorted(acted))
    return Seen(words.replace(" 1 times", " once").replace(" 2 times", " twice"), {*acted} == {1})


Trial = Callable[[ForkServer, Store, int, Path], Seen]

TRIALS: dict[str, tuple[Trial, int, int]] = {
    "SIGKILL while saving": (kills, 3, 200),
    "power cut, ext4": (power, 2, 200),
    "one bit flipped": (flips, 20, 1_000),
    "clock one hour back": (clock, 1, 20),
    "two processes resume one run": (resumes, 1, 20),
}
"""Each with the number of tries in the short form and in the full one."""
