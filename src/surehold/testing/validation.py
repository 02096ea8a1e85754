"""Checks of a storage in its place: written to, killed, damaged, filled up.

```console
$ python -m surehold.testing.validation sqlite:////srv/agents/runs.db
```

It works in a scratch area beside the storage (or, where the medium is no file, in runs of its
own), which it removes. Without a URL it is the default address. PASS or FAIL, a line a promise; the
exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from surehold.core.state import State
from surehold.doors.loop import run as durable
from surehold.engine.managers import CheckpointManager
from surehold.errors import ConflictError, StorageError, SureholdError
from surehold.storage.addresses import mask_url
from surehold.storage.registry import default_address
from surehold.testing.selftest import (
    Failed,
    Scratch,
    Skipped,
    Verdicts,
    killed_after,
    require,
    scratch_in,
)

STEPS = 40
SPOILT = 60
ROOM = 256 << 10
_SAVES_TO_FILL = 1_000
"""Saves of at least 2,000 bytes, of which the room takes far fewer."""
_VOLATILE = ("tmpfs", "ramfs", "devtmpfs")
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "virtiofs")
_FAST = 0.00005
_MEMORY = "memory ends with its process"


def _item(step: int) -> dict[str, Any]:
    """The data that a step adds. It depends on the step alone, so it can be checked."""
    return {"step": step, "text": f"step {step} ".ljust(100 + step * 37 % 400, "-")}


def _expected(step: int) -> dict[str, Any]:
    return {"items": [_item(n) for n in range(1, step + 1)]}


# What the child processes do


def _write_on(address: str, run_id: str) -> None:
    """Save step after step, and tell of each once it is acknowledged, until killed."""
    with durable(run_id, storage=address) as run:
        items = run.state.setdefault("items", [])
        while True:
            items.append(_item(run.step + 1))
            run.checkpoint()
            print(run.step, flush=True)


def _fill(address: str, run_id: str) -> None:
    """Save until no file has room to grow; then, with room again, once more."""
    with CheckpointManager(address) as manager:
        state = manager.resume_from_latest(run_id) or State.new({"items": []}, run_id=run_id)
        sys.dont_write_bytecode = True  # the limit would cut short what Python caches of a module
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
        noise = random.Random(7)
        error: SureholdError | None = None
        while error is None and state.step < _SAVES_TO_FILL:
            step = state.step + 1
            item = {**_item(step), "noise": noise.randbytes(2000).hex()}
            new = state.append("items", item).at(step=step)
            try:
                manager.save_checkpoint(new)
            except StorageError as full:
                error = full
            else:
                state = new
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        print(type(error).__name__, state.step, flush=True)
    with CheckpointManager(address) as manager:
        state = manager.resume_from_latest(run_id)
        manager.save_checkpoint(state.append("items", _item(0)).at(step=state.step + 1))
        print("again", state.step, flush=True)


_CHILDREN: dict[str, Callable[[str, str], None]] = {"write": _write_on, "fill": _fill}


def _start(which: str, scratch: Scratch, run: str, lines: int | None) -> list[str]:
    arguments = ["--child", which, scratch.run_id(run)]
    return killed_after("surehold.testing.validation", arguments, scratch.address, lines)


# What is promised


def _save_steps(manager: CheckpointManager, run_id: str) -> None:
    state = State.new({"items": []}, run_id=run_id)
    for step in range(1, 6):
        state = state.append("items", _item(step)).at(step=step)
        manager.save_checkpoint(state)


def _writes(scratch: Scratch) -> str:
    times = []
    with CheckpointManager(scratch.address) as manager:
        state = State.new({"items": []}, run_id=scratch.run_id("write"))
        ids = []
        for step in range(1, STEPS + 1):
            state = state.append("items", _item(step)).at(step=step)
            began = time.perf_counter()
            ids.append(manager.save_checkpoint(state))
            times.append(time.perf_counter() - began)
        if scratch.medium == "memory":
            _check_states(manager, ids)
    if scratch.medium != "memory":
        with CheckpointManager(scratch.address) as manager:
            _check_states(manager, ids)
    return f"{STEPS} states read back as they were; a save takes {_spell(times)}"


def _check_states(manager: CheckpointManager, ids: Sequence[str]) -> None:
    for step, checkpoint_id in enumerate(ids, start=1):
        state = manager.load_checkpoint(checkpoint_id)
        require(state.to_dict() == _expected(step), f"step {step} came back as another")


def _spell(times: Sequence[float]) -> str:
    return f"{statistics.median(times) * 1000:.2f} ms"


def _restores(scratch: Scratch) -> str:
    with CheckpointManager(scratch.address) as manager:
        run_id, copy = scratch.run_id("restore"), scratch.run_id("restored")
        _save_steps(manager, run_id)
        back = manager.list_checkpoints(run_id)[3]
        fork = manager.fork_from_checkpoint(back.checkpoint_id, run_id=scratch.run_id("fork"))
        require(fork.to_dict() == _expected(back.step), "a fork began with another state")
        with tempfile.TemporaryDirectory(prefix="surehold-") as directory:
            manager.export_run(run_id, Path(directory, "run.surehold"))
            manager.import_run(Path(directory, "run.surehold"), run_id=copy)
        require(
            manager.resume_from_latest(copy).to_dict() == _expected(5), "it came back as another"
        )
        require(all(manager.verify(copy)), "the copy is damaged")
    return "an earlier step, a fork, and a run from its exported file"


def _one_wins(scratch: Scratch) -> str:
    with scratch.open() as storage:
        one, two = CheckpointManager(storage), CheckpointManager(storage)
        one.save_checkpoint(State.new({"n": 0}, run_id=scratch.run_id("race")))
        first = one.resume_from_latest(scratch.run_id("race"))
        second = two.resume_from_latest(scratch.run_id("race"))
        one.save_checkpoint(first.set("n", 1).at(step=1))
        with suppress(ConflictError):
            two.save_checkpoint(second.set("n", 2).at(step=1))
            raise Failed("the second writer was not told")
        require(two.resume_from_latest(scratch.run_id("race"))["n"] == 1, "it was overwritten")
    return "the second writer must load again"


def _survives_kills(scratch: Scratch, rounds: int, chance: random.Random) -> str:
    if scratch.medium == "memory":
        raise Skipped(_MEMORY)
    run_id = scratch.run_id("kill")
    acknowledged = lost = 0
    for _ in range(rounds):
        said = _start("write", scratch, "kill", chance.randint(1, 15))
        acknowledged += len(said)
        with CheckpointManager(scratch.address) as manager:
            state = manager.resume_from_latest(run_id)
            step = 0 if state is None else state.step
            lost += max(int(said[-1]) - step, 0)
            require(lost == 0, f"step {said[-1]} was acknowledged, and step {step} is the newest")
            require(state.to_dict() == _expected(step), f"step {step} came back as another")
            verdict = manager.verify(run_id)[0]
            require(bool(verdict), f"damaged: {verdict.problems}")
    return f"{rounds} times SIGKILL, {acknowledged} saves acknowledged, {lost} lost"


def _notices_damage(scratch: Scratch, chance: random.Random) -> str:
    if scratch.directory is None:
        raise Skipped(_MEMORY if scratch.medium == "memory" else "its files are not ours to spoil")
    noticed = harmless = 0
    with scratch_in(scratch.address) as own:
        with CheckpointManager(own.address) as manager:
            _save_steps(manager, own.run_id("spoilt"))
        for n in range(SPOILT):
            with tempfile.TemporaryDirectory(prefix="surehold-") as directory:
                copy = own.copied_to(Path(directory, "copy"))
                true = _reads_truly(copy, _spoil(copy, chance, cut=n % 6 == 5))
                harmless, noticed = harmless + true, noticed + (not true)
    tried = f"{SPOILT} bits flipped or ends cut off"
    return f"{tried}: {noticed} noticed, {harmless} harmless, no false state"


def _spoil(copy: Scratch, chance: random.Random, *, cut: bool) -> str:
    """Flip a bit of a file, or cut its end off; tells what was done."""
    files = [path for path in copy.files() if path.stat().st_size]
    path = chance.choices(files, [path.stat().st_size for path in files])[0]
    data = bytearray(path.read_bytes())
    place = chance.randrange(len(data))
    if cut:
        del data[place:]
    else:
        data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"{'cut off at' if cut else 'flipped in'} byte {place} of {path.name}"


def _reads_truly(copy: Scratch, what: str) -> bool:
    """Return True if all is as it was, False if damage is reported; else fail."""
    run_id = copy.run_id("spoilt")
    try:
        with CheckpointManager(copy.address) as manager:
            sound = all(manager.verify(run_id))
            steps = []
            for entry in manager.list_checkpoints(run_id):
                state = manager.load_checkpoint(entry.checkpoint_id)
                require(state.to_dict() == _expected(entry.step), f"{what}: a false state")
                steps.append(entry.step)
            newest = manager.resume_from_latest(run_id)
    except SureholdError:
        return False
    if not sound:
        return False
    whole = steps == [5, 4, 3, 2, 1] and newest is not None and newest.step == 5
    # A file that lost its end is one that its writer had not finished: the rest is true.
    require(whole or "cut off" in what, f"{what}: steps {steps}, and nothing is said to be wrong")
    return whole


def _fills_up(scratch: Scratch) -> str:
    if scratch.directory is None:
        raise Skipped(_MEMORY if scratch.medium == "memory" else "its room is not ours to limit")
    (first, again) = _start("fill", scratch, "fill", None)
    error, step = first.split()
    require(error != "NoneType", f"nothing was said after {step} saves")
    with CheckpointManager(scratch.address) as manager:
        state = manager.resume_from_latest(scratch.run_id("fill"))
        require(int(again.split()[1]) == int(step), f"{step} were acknowledged, {again} were there")
        require(state.step == int(step) + 1, f"with room again, step {state.step} is the newest")
        require(bool(manager.verify(scratch.run_id("fill"))[0]), "what is there is damaged")
    return f"{error} after {step} saves, all of them there; with room again it continues"


def _power(scratch: Scratch) -> str:
    """Describe the effect of a power cut, as far as possible without one."""
    if scratch.directory is None:
        return "all is lost" if scratch.medium == "memory" else "is up to the server"
    kind = _file_system(scratch.directory)
    times = []
    with Path(scratch.directory, "sync").open("wb") as file:
        for _ in range(20):
            file.write(b"x" * 512)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    if kind in _VOLATILE:
        return f"all is lost: {kind} is memory"
    said = f"a save waits for its sync; one takes {_spell(times)} on {kind or 'this file system'}"
    if kind in _SHARED:
        return f"{said}, and whether it is kept is up to the server"
    if statistics.median(times) < _FAST:
        return f"{said}, too little for a disk: see whether its cache survives"
    return f"{said}, and the disk must keep what it says is synced"


def _file_system(path: Path) -> str:
    """The type of the file system that *path* is on; "" where that cannot be told."""
    best, kind = "", ""
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            mount = left.split()[4]
            inside = str(path) == mount or str(path).startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, right.split()[0]
    return kind


def _promises(scratch: Scratch, rounds: int, seed: int) -> dict[str, Callable[[], str]]:
    chance = random.Random(seed)
    return {
        "a written state comes back": partial(_writes, scratch),
        "a saved state can be restored": partial(_restores, scratch),
        "one of two writers wins": partial(_one_wins, scratch),
        "it survives being killed": partial(_survives_kills, scratch, rounds, chance),
        "damage is noticed": partial(_notices_damage, scratch, chance),
        "a full medium loses nothing": partial(_fills_up, scratch),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Make all checks on a storage; gives the exit code."""
    parser = argparse.ArgumentParser(
        "surehold.testing.validation", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("url", nargs="?", default=default_address(), help="a storage's address")
    parser.add_argument("--rounds", type=int, default=10, help="how often it is killed")
    parser.add_argument("--seed", type=int, default=None, help="to do the same again")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        which, run_id = given.child
        _CHILDREN[which](given.url, run_id)
        return 0
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    verdicts = Verdicts()
    # Damage that is done on purpose is logged, and belongs in no verdict.
    logging.getLogger("surehold").addHandler(logging.NullHandler())
    try:
        with scratch_in(given.url) as scratch:
            scratch.open().close()  # what cannot be reached is told once
            shown = mask_url(given.url)
            print(f"{shown}, in a scratch area of its own, --seed {seed}", flush=True)
            for promise, check in _promises(scratch, given.rounds, seed).items():
                verdicts.check(promise, check)
            print(f"A power cut, which was not tried: {_power(scratch)}.")
    except SureholdError as error:
        print(error, file=sys.stderr)
        return 2
    return verdicts.sum_up()


if __name__ == "__main__":
    sys.exit(main())
