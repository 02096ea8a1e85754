"""Rewind a run to a checkpoint, to repeat what it has done since then.

`StateGraph.resume` from an earlier checkpoint repeats no recorded effect. A rewind does: records
after the checkpoint are abandoned, and what was spent on them stays spent.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from surehold.core.records import Door, Effect, Header
from surehold.core.state import State
from surehold.core.values import Usage
from surehold.doors.result import spent_before
from surehold.doors.resume.inside import TOOL_FAILED, run_inside
from surehold.doors.resume.progress import Now, Progress, read_progress, write_progress
from surehold.doors.resume.target import find_target
from surehold.engine.journal import Note, Reader, branch_note
from surehold.engine.leases import LEASE_SECONDS
from surehold.engine.managers import AsyncCheckpointManager
from surehold.engine.runs import OpenRun, draft_of_state
from surehold.errors import NotFoundError, StorageError
from surehold.storage.base import RecordQuery, RunInfo

_ONLY_THEN = {"recovery": "error", "manual": "error", "fork": "forked_from"}
"""Metadata of a rewind, which later checkpoints do not inherit."""


async def rewind_run(
    manager: AsyncCheckpointManager,
    run_id: str,
    checkpoint_id: str,
    refuse: Callable[[Sequence[str]], Exception],
) -> str:
    """Save the state of an earlier checkpoint as the run's newest; return the new id.

    Effects since then are repeated, with other idempotency keys. If one of them was not declared
    safe to repeat, nothing is changed, and the error that *refuse* makes of their ids is raised.
    Effects in doubt stay in doubt.
    """
    held = OpenRun(run_id, None, manager, LEASE_SECONDS)
    await held.awaited.open()
    try:
        found = await asyncio.to_thread(_found, held, checkpoint_id)
        effects = held.ledger.effects()
        done = await asyncio.to_thread(done_for_good, manager.reader, run_id, effects)
        if done:
            raise refuse(done)
        return await _taken_back(held, *found)
    finally:
        await held.awaited.close()


def done_for_good(reader: Reader, run_id: str, notes: Iterable[Note]) -> list[str]:
    """Effects among *notes*, and of agents inside the run, that must not be repeated."""
    newest = {note.content.id: note.content for note in notes if note.kind == "effect"}
    done = [one.id for one in newest.values() if one.done and _may_not_be_repeated(one)]
    for one in newest.values():
        done += _done_inside(reader, run_inside(run_id, one.key))
    return done


def _may_not_be_repeated(entry: Effect) -> bool:
    failed = entry.error is not None or bytes(entry.value).startswith(TOOL_FAILED)
    return entry.policy != "retry" and not failed


def _done_inside(reader: Reader, run_id: str) -> list[str]:
    """The same for the run of an agent, which is abandoned as a whole."""
    run = reader.run(run_id)
    newest: dict[str, Effect] = {}
    for record in reader.records(run_id, 1, run.seq) if run is not None else ():
        if record.header.frame == "note" and record.header.kind == "effect":
            entry = msgspec.json.decode(reader.sealer.open(record), type=Effect)
            newest[entry.id] = entry
    done = [f"{run_id}/{one.id}" for one in newest.values() if _may_not_be_repeated(one)]
    for entry in newest.values():
        done += _done_inside(reader, run_inside(run_id, entry.key))
    return done


async def _taken_back(held: OpenRun, header: Header, state: State, progress: Progress) -> str:
    now = Now(
        next=progress.next,
        elapsed=progress.elapsed,
        floor=held.floor,
        branch=held.branch,
        spent=await asyncio.to_thread(spent_before, held.manager.reader, held.run_id),
    )

    path = progress.path
    in_doubt = [note for note in held.ledger.effects() if not note.content.done]
    draft = draft_of_state(
        state.at(kind="recovery"),
        state.lineage,
        door=held.door,
        fingerprint=header.fingerprint,
        schema=header.schema,
        extra=functools.partial(write_progress, now, path, len(path), progress.shape),
    )
    notes = (branch_note(header.seq, held.branch), *in_doubt)
    saved = await held.awaited.save(draft, notes=notes)
    if not saved:
        raise StorageError(f"run {held.run_id!r} could not be rewound", run_id=held.run_id)
    return saved


def _found(held: OpenRun, checkpoint_id: str) -> tuple[Header, State, Progress]:
    """The checkpoint, its state with everything spent since, and its progress."""
    reader, run_id = held.manager.reader, held.run_id
    run = reader.run(run_id)
    if run is None:
        raise NotFoundError(f"run {run_id!r} is gone", run_id=run_id)
    target = find_target(reader, run, checkpoint_id)
    run, header = target.run, target.header
    left = reader.load(target.newest)
    held.door = Door("agent") if left.form else left.door
    held.floor = run.seq
    loaded, state = held.load_at(header, notes=True)
    held.branch = run.seq
    progress = read_progress(loaded) if loaded.door.has_nodes else Progress()
    state = of_the_run(header, state)
    return header, still_spent(state, left.graph_state(), replayed=state), progress


def of_the_run(header: Header, state: State) -> State:
    """The state as the run continues with it, without marks of its checkpoint alone."""
    passing = _ONLY_THEN.get(header.kind)
    if passing in state.metadata:
        state = state.at(metadata={k: v for k, v in state.metadata.items() if k != passing})
    return state.at(kind="routine", status="running")


def across_branches(held: OpenRun, run: RunInfo, state: State) -> State:
    """The *state* that *held* loaded, with what was spent on other branches.

    What its own branch recorded is replayed, and counted again then.
    """
    reader = held.manager.reader
    headers = list(reader.storage.headers(RecordQuery(run_id=run.run_id, scope="")))
    end = next(header for header in headers if header.seq <= held.end)
    newest, replayed = (reader.load(one).graph_state() for one in (headers[0], end))
    return still_spent(state, newest, replayed=replayed)


def still_spent(state: State, newest: State, *, replayed: State) -> State:
    """An earlier *state* of an agent or a fleet with everything spent up to *newest*.

    What led from *state* to *replayed* is left out: it is counted when it is replayed. A graph of
    the user keeps the counts of its own state.
    """
    if all(map(_is_agents, (state, newest, replayed))):
        return _agents(state, newest, replayed)
    if _is_fleets(state) and _is_fleets(newest):  # of which nothing is ever replayed
        state = state.without("usage_before") if "usage_before" in state else state
        return state.merge({"usage": newest["usage"], "elapsed": newest["elapsed"]})
    return state


def _is_agents(state: State) -> bool:
    extra = state.get("extra")
    return "budget_spent_usd" in state and isinstance(extra, Mapping) and "usage" in extra


def _is_fleets(state: State) -> bool:
    usage = state.get("usage")
    return "current_round" in state and isinstance(usage, Mapping) and "calls" in usage


def _agents(state: State, newest: State, replayed: State) -> State:
    abandoned = _cycles(newest) - _own_cycles(replayed)
    lost = _usage(newest) - _own_usage(replayed, with_open=replayed is not state)
    spent = _own_usage(state, with_open=False) + lost
    extra = {name: value for name, value in state["extra"].items() if name != "usage_before"}
    more = {
        "usage": spent.to_dict(),
        "cycles_used": _own_cycles(state) + abandoned,
        "given_up": {**lost.to_dict(), "cycles": abandoned},
    }
    return state.merge({"budget_spent_usd": spent.cost_usd, "extra": {**extra, **more}})


def _usage(state: State) -> Usage:
    """Usage of an agent, abandoned results included."""
    return replace(Usage.read(state["extra"]["usage"]), cost_usd=state["budget_spent_usd"])


def _own_usage(state: State, *, with_open: bool) -> Usage:
    """The same without abandoned results, and without those of an open cycle."""
    extra, used = state["extra"], _usage(state)
    if not with_open and "usage_before" in extra:
        used = Usage.read(extra["usage_before"])
    return used - Usage.read(extra["given_up"]) if "given_up" in extra else used


def _cycles(state: State) -> int:
    return int(state["extra"]["cycles_used"])


def _own_cycles(state: State) -> int:
    return _cycles(state) - int(state["extra"].get("given_up", {}).get("cycles", 0))
