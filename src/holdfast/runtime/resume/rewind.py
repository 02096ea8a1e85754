"""A run taken back to a checkpoint, to do anew what it has done since then.

`StateGraph.resume` at an earlier checkpoint repeats nothing that is recorded. Here it is the other
way round: what was recorded since then is given up and done again, and all that was spent on it
stays spent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.effects import Effect, Session, branch_note
from holdfast.checkpoint.journal import Note, Reader
from holdfast.checkpoint.manager import StateManager
from holdfast.core.records import Header
from holdfast.core.state import State
from holdfast.errors import NotFoundError, StorageError
from holdfast.runtime.agent import TOOL_FAILED, run_inside
from holdfast.runtime.graph import CheckpointConfig, Now, Progress, read_progress, write_progress
from holdfast.storage.base import RecordQuery, RunInfo

__all__ = ["across_branches", "done_for_good", "of_the_run", "rewind_run"]

_ONLY_THEN = {"recovery": "error", "manual": "error", "fork": "forked_from"}
"""Metadata that is about one checkpoint of that kind, not about those that follow it."""
_USED = ("model_calls", "unpriced_calls", "tokens", "seconds")
"""What an agent's calls add up to."""
_FLEETS_OWN = ("calls", "input_tokens", "output_tokens", "cost_usd", "unpriced")
"""The same of a fleet."""


async def rewind_run(
    manager: StateManager,
    run_id: str,
    checkpoint_id: str,
    refuse: Callable[[Sequence[str]], Exception],
) -> str:
    """Save the state of an earlier checkpoint anew, so that the run goes on from it; gives the id.

    What was done since then is done again, with other idempotency keys. So where something was
    done that was not declared safe to repeat, nothing is changed and what *refuse* makes of those
    effects is raised. An effect that nobody knows the outcome of waits at its place.
    """
    session = Session(manager, run_id, lease_seconds=CheckpointConfig().lease_seconds)
    await session.open()
    try:
        found = await asyncio.to_thread(_found, session, checkpoint_id)
        effects = session.ledger.effects()
        done = await asyncio.to_thread(done_for_good, session, effects)
        if done:
            raise refuse(done)
        return await _taken_back(session, *found)
    finally:
        await session.close()


def done_for_good(session: Session, notes: Sequence[Note]) -> list[str]:
    """The effects among *notes* that may not be done again, and those of agents inside the run."""
    reader = session.manager.reader
    newest = {note.content.id: note.content for note in notes if note.kind == "effect"}
    done = [one.id for one in newest.values() if one.done and _may_not_be_repeated(one)]
    for one in newest.values():
        done += _done_inside(reader, run_inside(session.run_id, one.key))
    return done


def _may_not_be_repeated(entry: Effect) -> bool:
    failed = entry.error is not None or bytes(entry.value).startswith(TOOL_FAILED)
    return entry.policy != "retry" and not failed


def _done_inside(reader: Reader, run_id: str) -> list[str]:
    """The same of a run that is given up as a whole, where nobody waits for anything any more."""
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


async def _taken_back(session: Session, header: Header, state: State, progress: Progress) -> str:
    now = Now(
        next=progress.next,
        elapsed=progress.elapsed,
        floor=session.floor,
        branch=session.branch,
    )

    def extra(whole: bool) -> bytes:
        path, shape = (progress.path, progress.shape) if whole else ([], None)
        return write_progress(now, path, shape, progress.entry_point)

    in_doubt = [note for note in session.ledger.effects() if not note.content.done]
    saved = await session.save(
        state.at(kind="recovery"),
        state.lineage,
        fingerprint=header.fingerprint,
        schema=header.schema,
        extra=extra,
        notes=(branch_note(header.seq, session.branch), *in_doubt),
    )
    if not saved:
        raise StorageError(f"run {session.run_id!r} could not be taken back", run_id=session.run_id)
    return saved


def _found(session: Session, checkpoint_id: str) -> tuple[Header, State, Progress]:
    """The checkpoint, its state with all that was spent since, and where the run stood then."""
    reader, run_id = session.manager.reader, session.run_id
    run = reader.run(run_id)
    newest = reader.newest(run) if run is not None else None
    if run is None or newest is None:
        raise NotFoundError(f"run {run_id!r} is gone", run_id=run_id)
    header = reader.resolve(checkpoint_id, run_id=run_id)
    left = reader.load(newest)
    session.form = left.form
    session.floor = run.seq
    loaded, state = session.load(header, notes=True)
    session.branch = run.seq
    progress = read_progress(loaded) if "now" in loaded.extra else Progress()
    state = of_the_run(header, state)
    return header, still_spent(state, left.graph_state(), replayed=state), progress


def of_the_run(header: Header, state: State) -> State:
    """The state as it was in the run, without what its checkpoint alone was marked with."""
    passing = _ONLY_THEN.get(header.kind)
    if passing in state.metadata:
        state = state.at(metadata={k: v for k, v in state.metadata.items() if k != passing})
    return state.at(kind="routine", status="running")


def across_branches(session: Session, run: RunInfo, state: State) -> State:
    """The *state* of the checkpoint that *session* loaded, with what was spent on other ways.

    What is recorded on its own is replayed, and counted again when it is.
    """
    reader = session.manager.reader
    headers = list(reader.storage.headers(RecordQuery(run_id=run.run_id, scope="")))
    end = next(header for header in headers if header.seq <= session.end)
    newest, replayed = (reader.load(one).graph_state() for one in (headers[0], end))
    return still_spent(state, newest, replayed=replayed)


def still_spent(state: State, newest: State, *, replayed: State) -> State:
    """An earlier *state* of a run with all that was spent since, as its *newest* tells.

    Less what led from *state* to *replayed*: that is still to be counted. This is for agents and
    fleets, which keep account. What a graph of one's own counts in its state goes back with it.
    """
    if all(map(_is_agents, (state, newest, replayed))):
        return _agents(state, newest, replayed)
    if _is_fleets(state) and _is_fleets(newest):  # of which nothing is ever replayed
        return state.merge({"usage": newest["usage"], "elapsed": newest["elapsed"]})
    return state


def _is_agents(state: State) -> bool:
    extra = state.get("extra")
    return "budget_spent_usd" in state and isinstance(extra, Mapping) and "usage" in extra


def _is_fleets(state: State) -> bool:
    usage = state.get("usage")
    return "current_round" in state and isinstance(usage, Mapping) and {*usage} == {*_FLEETS_OWN}


def _agents(state: State, newest: State, replayed: State) -> State:
    good, total = _account(state, given_up=False), _account(newest)
    counted = _account(replayed, given_up=False)
    given_up = {name: total[name] - counted[name] for name in total}
    spent = {name: good[name] + given_up[name] for name in good}
    extra = state["extra"]
    more = {
        "usage": {**extra["usage"], **{name: spent[name] for name in _USED}},
        "cycles_used": spent["cycles"],
        "given_up": given_up,
    }
    return state.merge({"budget_spent_usd": spent["usd"], "extra": {**extra, **more}})


def _account(state: State, *, given_up: bool = True) -> dict[str, Any]:
    """What an agent has spent, the results that it gave up included or not."""
    extra = state["extra"]
    spent = {name: extra["usage"][name] for name in _USED}
    spent |= {"cycles": extra["cycles_used"], "usd": state["budget_spent_usd"]}
    lost = {} if given_up else extra.get("given_up", {})
    return {name: amount - lost.get(name, 0) for name, amount in spent.items()}
