"""Promises of a storage, checked in its place: killed, damaged, filled up."""

from __future__ import annotations

import logging
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from surehold.agents.resilient import ResilientCheckpointManager
from surehold.core.state import State
from surehold.doors.loop import run as durable
from surehold.engine.managers import CheckpointManager
from surehold.errors import ConflictError, LeaseHeldError, SureholdError
from surehold.testing.selftest.children import STEPS, item, killed_after
from surehold.testing.selftest.scratch import Scratch, scratch_in
from surehold.testing.selftest.verdicts import Failed, PromiseVerdict, Skipped, judge, require

_WRITTEN = 40
_SPOILT = 60
_KEY = "5a" * 32
_VOLATILE = ("tmpfs", "ramfs", "devtmpfs")
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "virtiofs")
_FAST = 0.00005
_MEMORY = "memory ends with its process"


def _expected(step: int) -> dict[str, Any]:
    return {"items": [item(n) for n in range(1, step + 1)]}


def _save_steps(manager: CheckpointManager, run_id: str) -> None:
    state = State.new({"items": []}, run_id=run_id)
    for step in range(1, 6):
        state = state.append("items", item(step)).at(step=step)
        manager.save_checkpoint(state)


def _writes(scratch: Scratch) -> str:
    times = []
    with CheckpointManager(scratch.address) as manager:
        state = State.new({"items": []}, run_id=scratch.run_id("write"))
        ids = []
        for step in range(1, _WRITTEN + 1):
            state = state.append("items", item(step)).at(step=step)
            began = time.perf_counter()
            ids.append(manager.save_checkpoint(state))
            times.append(time.perf_counter() - began)
        if scratch.medium == "memory":
            _check_states(manager, ids)
    if scratch.medium != "memory":
        with CheckpointManager(scratch.address) as manager:
            _check_states(manager, ids)
    return f"{_WRITTEN} states read back as they were; a save takes {_spell(times)}"


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
    _outlives_a_process(scratch)
    run_id = scratch.run_id("kill")
    acknowledged = lost = 0
    for _ in range(rounds):
        said = killed_after("write", scratch.address, run_id, chance.randint(1, 15))
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


def _outlives_a_process(scratch: Scratch) -> None:
    if scratch.medium == "memory":
        raise Skipped(_MEMORY)


def _resumes(which: str, scratch: Scratch, calls: Path) -> str:
    """Kill it twice, let it end, and count what it did."""
    _outlives_a_process(scratch)
    calls.write_text("")
    run_id = scratch.run_id(which)
    for lines in (3, 4, None):
        killed_after(which, scratch.address, run_id, lines, str(calls))
    done = calls.read_text().split()
    require(sorted(set(map(int, done))) == list(range(STEPS)), f"it did {done}")
    again = len(done) - len(set(done))
    require(again <= 2, f"{again} steps were done twice after two kills")
    with CheckpointManager(scratch.address) as manager:
        state = manager.resume_from_latest(run_id)
        require(state is not None and state.status == "completed", "it is not completed")
        require(state["done"] == STEPS, f"its state says {state['done']}")
        verdict = manager.verify(run_id)[0]
    require(bool(verdict), f"its journal is damaged: {verdict.problems}")
    return f"{STEPS} steps, killed twice, {again} cut off and done again"


def _rolls_back(scratch: Scratch, calls: Path) -> str:
    _outlives_a_process(scratch)
    calls.write_text("whole")
    agent = scratch.run_id("agent")
    killed_after("operation", scratch.address, agent, 1, str(calls))
    require(calls.read_text() == "half", "it was not killed half way")
    with ResilientCheckpointManager(agent, scratch.address) as manager:
        manager.register_provider("file", calls.read_text, calls.write_text)
        undone = manager.roll_back_unfinished()
    require([one.operation for one in undone] == ["deploy"], f"it found {undone}")
    require(calls.read_text() == "whole", "it was not rolled back")
    return "found in the transaction log, and undone"


def _one_process(scratch: Scratch) -> str:
    with scratch.open() as storage, durable(scratch.run_id("held"), storage=storage):
        try:
            with durable(scratch.run_id("held"), storage=storage):
                raise Failed("two at once have it")
        except LeaseHeldError as error:
            return f"the other learns who: {error.message}"


def _encrypted(scratch: Scratch) -> str:
    if find_spec("cryptography") is None:
        raise Skipped("pip install 'surehold[crypto]'")
    run_id = scratch.run_id("private")
    with CheckpointManager(scratch.address, encryption_key=_KEY) as manager:
        manager.save_checkpoint(State.new({"diary": "dulse and kelp"}, run_id=run_id))
        require(manager.resume_from_latest(run_id)["diary"] == "dulse and kelp", "not readable")
    files = scratch.files()
    found = [path.name for path in files if b"dulse and kelp" in path.read_bytes()]
    require(not found, f"it stands in the clear in {found}")
    return f"not to be found in {len(files)} files" if files else "read back with its key"


def _notices_damage(scratch: Scratch, chance: random.Random) -> str:
    if scratch.directory is None:
        raise Skipped(_MEMORY if scratch.medium == "memory" else "its files are not ours to spoil")
    noticed = harmless = 0
    with scratch_in(scratch.address) as own:
        with CheckpointManager(own.address) as manager:
            _save_steps(manager, own.run_id("spoilt"))
        for n in range(_SPOILT):
            with tempfile.TemporaryDirectory(prefix="surehold-") as directory:
                copy = own.copied_to(Path(directory, "copy"))
                true = _reads_truly(copy, _spoil(copy, chance, cut=n % 6 == 5))
                harmless, noticed = harmless + true, noticed + (not true)
    tried = f"{_SPOILT} bits flipped or ends cut off"
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
    with scratch_in(scratch.address) as own:
        run_id = own.run_id("fill")
        first, again = killed_after("fill", own.address, run_id, None)
        error, step = first.split()
        require(error != "NoneType", f"nothing was said after {step} saves")
        require(again.split()[1] == step, f"{step} were acknowledged, {again} were there")
        with CheckpointManager(own.address) as manager:
            newest = manager.resume_from_latest(run_id).step
            require(newest == int(step) + 1, f"with room again, step {newest} is the newest")
            require(bool(manager.verify(run_id)[0]), "what is there is damaged")
    return f"{error} after {step} saves, all of them there; with room again it continues"


def _power(scratch: Scratch) -> str:
    """Describe the effect of a power cut, as far as possible without one."""
    raise Skipped(f"not tried; {_without_power(scratch)}")


def _without_power(scratch: Scratch) -> str:
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


def check_storage(address: str, rounds: int, seed: int) -> Iterator[PromiseVerdict]:
    """Check every promise in a scratch area of the storage at *address*.

    The area is removed in the end. Writers are killed *rounds* times. The same *seed* damages the
    same bytes. A storage that cannot be reached raises.
    """
    # Damage that is done on purpose is logged, and belongs in no verdict.
    logging.getLogger("surehold").addHandler(logging.NullHandler())
    chance = random.Random(seed)
    with scratch_in(address) as scratch, tempfile.TemporaryDirectory(prefix="surehold-") as temp:
        scratch.open().close()  # what cannot be reached is told once
        calls = Path(temp, "calls")
        promises: dict[str, Callable[[], str]] = {
            "a written state comes back": partial(_writes, scratch),
            "a saved state can be restored": partial(_restores, scratch),
            "one of two writers wins": partial(_one_wins, scratch),
            "one process has a run": partial(_one_process, scratch),
            "acknowledged saves survive kills": partial(_survives_kills, scratch, rounds, chance),
            "a loop that is killed resumes at the next step": partial(
                _resumes, "loop", scratch, calls
            ),
            "a graph that is killed resumes, and repeats no recorded effect": partial(
                _resumes, "graph", scratch, calls
            ),
            "an operation that is killed is found and rolled back": partial(
                _rolls_back, scratch, calls
            ),
            "what is encrypted cannot be read": partial(_encrypted, scratch),
            "damage is noticed": partial(_notices_damage, scratch, chance),
            "a full medium loses nothing": partial(_fills_up, scratch),
            "a power cut": partial(_power, scratch),
        }
        for promise, check in promises.items():
            yield judge(promise, check)
