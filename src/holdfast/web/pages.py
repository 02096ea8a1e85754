"""The pages: each is one function from a request to what a template shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.effects import Waiting, waiting_now
from holdfast.checkpoint.inspect import Figures, fork_origins, status_of_run, view_note
from holdfast.checkpoint.repair import RunVerdict, verify_headers
from holdfast.cli.commands.see import read_diff
from holdfast.cli.framework import recorded_entry
from holdfast.core.records import STATUSES, Header
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.runtime.resume import explain
from holdfast.storage.base import RecordQuery, RunQuery
from holdfast.web.conversation import read_turns
from holdfast.web.rendering import pretty
from holdfast.web.run_list import Filter, read_runs
from holdfast.web.run_view import RunView, last_writers, read_run, state_at
from holdfast.web.site import Site, asked

__all__ = ["Pages"]

TABS = ("conversation", "state", "effects", "cost", "events", "raw")
_MOST_RUNS = 1000
"""Runs that Storage and Health look at, the newest."""
_MOST_WAITING = 50
"""Questions, effects, events and timers of one page; those of one run stay together."""
_MOST_STATE = 400_000
"""Characters of a state that a page shows."""


class Pages:
    """The handlers of pages that only read."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def runs(self, request: Request) -> Response:
        """List the runs."""
        wanted = Filter(
            name=asked(request, "name") or "",
            status=asked(request, "status") or "",
            search=asked(request, "search") or "",
            before=asked(request, "before", int),
        )
        after = self._site.newest_record()
        found = read_runs(self._site.manager, wanted)
        is_empty = not found.runs and wanted == Filter()
        return self._site.page(
            request,
            "runs.html",
            after=after,
            wanted=wanted,
            found=found,
            is_empty=is_empty,
            statuses=[*STATUSES, "stale"],
        )

    def run(self, request: Request) -> Response:
        """Show one run, with one of its steps."""
        site = self._site
        nested = bool(asked(request, "nested"))
        view = read_run(
            site.manager,
            _named(request, "id"),
            at=asked(request, "at", int),
            step=asked(request, "step", int),
            nested=nested,
        )
        header = view.chosen.header
        text, problem = _tried(lambda: state_at(site.manager, header))
        state: Any = msgspec.json.decode(text) if text else None
        turns = read_turns(state)
        tab = asked(request, "tab") or ("conversation" if turns else "state")
        if tab not in TABS:
            raise NotFoundError(f"there is no tab {tab!r}")
        costs = site.costs.up_to(view.run, header.seq)
        return site.page(
            request,
            "run.html",
            view=view,
            head=header,
            nested=nested,
            tab=tab,
            tabs=TABS,
            shape=asked(request, "shape") or "delta",
            problem=problem,
            costs=costs,
            tokens=sum(one.tokens for one in costs),
            dollars=sum(one.dollars for one in costs),
            entry=self._entry(view),
            plan=self._plan(view),
            **self._of_tab(view, tab, request, text or b"", turns),
        )

    def _of_tab(
        self, view: RunView, tab: str, request: Request, text: bytes, turns: list[Any]
    ) -> dict[str, Any]:
        """The values that only one tab shows."""
        shown: dict[str, Any] = {"turns": turns, "state": "", "hidden": 0, "blame": {}, "notes": []}
        if tab == "raw" or (tab == "state" and asked(request, "shape") == "full"):
            whole = pretty(text) if text else ""
            shown |= {"state": whole[:_MOST_STATE], "hidden": max(0, len(whole) - _MOST_STATE)}
        if tab == "state" and asked(request, "shape") == "blame" and text:
            keys = [*msgspec.json.decode(text, type=dict[str, msgspec.Raw])]
            header = view.chosen.header
            shown["blame"] = last_writers(self._site.manager, view.run, header, keys)
        if tab == "events":
            shown["notes"] = [*reversed(view.after)] + [
                note for entry in view.entries for note in reversed(entry.notes)
            ]
        shown["grown"] = sum(
            change.path.endswith("/-") and change.path.count("/") == 2
            for change in view.chosen.changes
            if change.path.startswith(("/messages/", "/conversation_history/"))
        )
        return shown

    def _entry(self, view: RunView) -> str:
        """The ``module:name`` that executes the run, if it is known."""
        given = self._site.graphs.get(view.run.name)
        recorded, _ = _tried(lambda: recorded_entry(self._site.manager, view.run))
        return given or recorded or ""

    def _plan(self, view: RunView) -> str:
        """Describe what a resume would do, for a run that has not ended."""
        if view.summary.status in ("completed", "running"):
            return ""
        plan, problem = _tried(
            lambda: str(explain(self._site.manager.reader, None, view.run.run_id))
        )
        return plan or problem

    def compare(self, request: Request) -> Response:
        """Compare two checkpoints."""
        a, b = asked(request, "a"), asked(request, "b")
        document = None
        divergence = ""
        if a and b:
            one, two = self._site.finder.checkpoint(a), self._site.finder.checkpoint(b)
            document = read_diff(self._site.manager, one, two)
            divergence = self._divergence(one, two)
        return self._site.page(
            request, "compare.html", a=a or "", b=b or "", diff=document, divergence=divergence
        )

    def _divergence(self, one: Header, two: Header) -> str:
        """The place where two runs part, in words."""
        if one.run_id == two.run_id:
            return ""
        origins = fork_origins(self._site.manager.storage)
        for a, b in ((one, two), (two, one)):
            origin = origins.get(a.run_id)
            if origin is not None and origin.run_id == b.run_id:
                return f"{a.run_id} was forked from {b.run_id} at step {origin.step}."
        for left, right in zip(self._nodes(one), self._nodes(two), strict=False):
            if left != right:
                return f"The first difference: {one.run_id} {left}, {two.run_id} {right}."
        return "The nodes of both are the same, as far as both go."

    def _nodes(self, header: Header) -> list[str]:
        query = RecordQuery(run_id=header.run_id, scope="")
        found = islice(self._site.manager.storage.headers(query), _MOST_RUNS)
        return [f"step {one.step} {one.node or ''}".strip() for one in reversed([*found])]

    def waiting(self, request: Request) -> Response:
        """List what runs wait for, those of the newest runs first."""
        after = self._site.newest_record()
        reader = self._site.manager.reader
        before: int | None = asked(request, "before", int)
        found: list[Waiting] = []
        damaged: list[str] = []
        last, more = before, False
        for run in reader.storage.runs(RunQuery(open=True, before=before)):
            if more := len(found) >= _MOST_WAITING:
                break
            last = run.ordinal
            one, problem = _tried(partial(waiting_now, reader, run))
            found += one or ()
            damaged += [run.run_id] if problem else []
        return self._site.page(
            request,
            "waiting.html",
            found=found,
            damaged=damaged,
            after=after,
            following=last if more else None,
            before=before,
        )

    def storage(self, request: Request) -> Response:
        """Show the bytes by name and by run."""
        manager = self._site.manager
        runs = list(manager.storage.runs(RunQuery(limit=_MOST_RUNS + 1)))
        more, runs = len(runs) > _MOST_RUNS, runs[:_MOST_RUNS]
        by_name: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for run in runs:
            by_name[run.name] += run.stored
            counts[run.name] += 1
        total = sum(run.stored for run in runs)
        return self._site.page(
            request,
            "storage.html",
            runs=sorted(runs, key=lambda run: -run.stored)[:25],
            names=by_name.most_common(25),
            counts=counts,
            total=total,
            checkpoints=sum(run.checkpoints for run in runs),
            count=len(runs),
            more=more,
            rules=self._site.rules,
        )

    def health(self, request: Request) -> Response:
        """Show what is wrong: failures, stale runs, resumes, damage."""
        manager = self._site.manager
        runs = list(manager.storage.runs(RunQuery(limit=_MOST_RUNS + 1)))
        more, runs = len(runs) > _MOST_RUNS, runs[:_MOST_RUNS]
        now = [(run, status_of_run(manager.storage, run)) for run in runs]
        wrong = [(run, status) for run, status in now if status in ("failed", "stale")]
        checked: list[RunVerdict] = []
        if asked(request, "verify"):
            checked = [verify_headers(manager.reader, run) for run in runs]
        figures = None
        if asked(request, "resumes"):
            figures = Figures()
            for run in runs:
                figures.take(manager.reader, run)
        return self._site.page(
            request,
            "health.html",
            counts=Counter(status for _, status in now),
            wrong=wrong[:50],
            hidden=max(0, len(wrong) - 50),
            more=more,
            count=len(runs),
            checked=checked,
            damaged=[one for one in checked if not one],
            resumes=sorted(figures.resumes.items()) if figures else None,
        )

    def event(self, request: Request) -> Response:
        """Show one record that is no checkpoint."""
        run_id, seq = _named(request, "id"), asked(request, "seq", int)
        for record in self._site.manager.storage.read(run_id, first=seq, last=seq):
            if record.header.frame == "note":
                note = view_note(self._site.manager.reader, record)
                return self._site.page(request, "event.html", run_id=run_id, note=note)
        raise NotFoundError(f"run {run_id!r} has no note {seq}", run_id=run_id)


def _named(request: Request, name: str) -> str:
    given: str | None = asked(request, name)
    if given is None:
        raise NotFoundError(f"the address names no {name}")
    return given


def _tried(read: Callable[[], Any]) -> tuple[Any, str]:
    """The value, or None and why there is none."""
    try:
        return read(), ""
    except HoldfastError as error:
        return None, str(error)
