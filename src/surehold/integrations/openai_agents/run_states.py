"""Paused runs of the OpenAI Agents SDK, kept until someone continues them, once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import msgspec
from agents import Agent, RunState

from surehold.core.records import check_run_id
from surehold.engine.managers import CheckpointManager
from surehold.errors import LeaseHeldError, NotFoundError, UsageError
from surehold.integrations.item_lists import ItemList, ItemLists, ListChange
from surehold.integrations.managed import Managed
from surehold.storage.base import RunQuery, Storage

_STATE, _CLAIM, _SAVED = "state", "claim", "saved_at"


class PausedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the store."""

    run_id: str
    saved_at: float
    """When its state was saved, in seconds since 1970."""
    completed: bool
    claimed_until: float | None
    """The end of the claim on it; None if nobody continues it now."""


class RunClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The right to continue a paused run: nobody else has it until *until*."""

    run_id: str
    token: str
    until: float
    state: Mapping[str, Any]
    """The state as JSON, for `RunState.from_json`."""

    async def load(self, agent: Agent[Any], **options: Any) -> RunState[Any]:
        """The state, for *agent*; *options* are those of `RunState.from_json`."""
        return await RunState.from_json(agent, dict(self.state), **options)


class SureholdRunStates(Managed):
    """A store of `RunState`: save it, claim it once, continue it, and complete it.

    Each paused run is a run of *storage* with its own id, so `surehold log` and `diff` show what
    became of it. *namespace* keeps the ids of several stores apart. A state is JSON, and nothing
    stored is executed; encrypt the storage if the states hold secrets.
    """

    def __init__(
        self,
        storage: CheckpointManager | Storage | str | None = None,
        *,
        namespace: str = "openai-agents-states",
    ) -> None:
        self._namespace = check_run_id(namespace, "namespace")
        self._manage(storage)
        self._lists = ItemLists(self.manager.face, "a paused run of the OpenAI Agents SDK")

    async def save(
        self,
        run_id: str,
        state: RunState[Any] | Mapping[str, Any],
        *,
        claim: RunClaim | None = None,
    ) -> None:
        """Save *state*, over the one before; with the *claim* that it was continued under.

        The claim ends. A run that someone else has claimed meanwhile is a `LeaseHeldError`.
        """
        text = state.to_json() if isinstance(state, RunState) else dict(state)

        def edit(known: ItemList) -> ListChange:
            _check(run_id, known, claim)
            rest = {_STATE: text, _SAVED: time.time(), _CLAIM: None}
            return ListChange(rest=rest, what="save")

        await self._change(run_id, edit)

    async def claim(self, run_id: str, *, seconds: float = 300) -> RunClaim:
        """Take a paused run, for so many seconds; a `LeaseHeldError` if another has it."""
        if not seconds > 0:
            raise UsageError(f"seconds is {seconds!r}", hint="give seconds above 0")
        made = {"token": uuid4().hex, "until": time.time() + seconds}

        def edit(known: ItemList) -> ListChange:
            if known.value(_STATE) is None:
                raise _not_there(run_id, known)
            _check(run_id, known, None)
            return ListChange(rest={_CLAIM: made}, what="claim")

        found = await self._change(run_id, edit)
        return RunClaim(run_id=run_id, state=found.value(_STATE), **made)  # type: ignore[arg-type]

    async def release(self, claim: RunClaim) -> None:
        """Give a claimed run back, as it was."""

        def edit(known: ItemList) -> ListChange:
            _check(claim.run_id, known, claim)
            return ListChange(rest={_CLAIM: None}, what="release")

        await self._change(claim.run_id, edit)

    async def complete(self, claim: RunClaim) -> None:
        """End a claimed run: it cannot be claimed again, and its state goes."""

        def edit(known: ItemList) -> ListChange:
            _check(claim.run_id, known, claim)
            return ListChange(rest={_STATE: None, _CLAIM: None}, what="complete")

        await self._change(claim.run_id, edit)

    async def runs(self) -> list[PausedRun]:
        """All runs of the store, the newest first."""
        return await self._awaited.call(self._runs)

    async def expire(self, *, older_than: float) -> list[str]:
        """Remove runs that nobody has saved or claimed for so many seconds; their ids."""
        return await self._awaited.call(self._expire, older_than)

    def _runs(self) -> list[PausedRun]:
        found = []
        for run in self.manager.storage.runs(RunQuery(name=self._namespace)):
            known = self._lists.read(run.run_id)
            made = known.value(_CLAIM)
            until = made["until"] if made is not None else None
            found.append(
                PausedRun(
                    run_id=run.run_id.removeprefix(f"{self._namespace}/"),
                    saved_at=known.value(_SAVED),
                    completed=known.value(_STATE) is None,
                    claimed_until=until if until is not None and until > time.time() else None,
                )
            )
        return found

    def _expire(self, older_than: float) -> list[str]:
        gone = []
        for one in self._runs():
            if one.claimed_until is None and one.saved_at < time.time() - older_than:
                self._lists.forget(self._run_id(one.run_id))
                gone.append(one.run_id)
        return gone

    async def _change(self, run_id: str, edit: Any) -> ItemList:
        place = self._run_id(check_run_id(run_id))
        return await self._awaited.call(self._lists.change, place, self._namespace, edit)

    def _run_id(self, run_id: str) -> str:
        return f"{self._namespace}/{run_id}"


def _check(run_id: str, known: ItemList, claim: RunClaim | None) -> None:
    """Raise a `LeaseHeldError` unless the list is free, or *claim* is the one on it."""
    held = known.value(_CLAIM)
    if claim is not None:
        if held is None or held["token"] != claim.token:
            raise LeaseHeldError(
                f"the claim on paused run {run_id!r} has ended, and another had it since",
                hint="claim it again: its state may be another one now",
                run_id=run_id,
            )
    elif held is not None and held["until"] > time.time():
        raise LeaseHeldError(
            f"paused run {run_id!r} is claimed for {held['until'] - time.time():.0f} s more",
            hint="someone else continues it",
            run_id=run_id,
        )


def _not_there(run_id: str, known: ItemList) -> Exception:
    if known.header is None:
        return NotFoundError(f"there is no paused run {run_id!r}", run_id=run_id)
    return NotFoundError(
        f"paused run {run_id!r} is completed", hint="save a new state to it", run_id=run_id
    )
