"""The pages: each is one function from a request to what a template shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from surehold.doors.resume import explain
from surehold.engine.repair import RunVerdict, verify_headers
from surehold.engine.runs import SHOWN_STATUSES, UNDER_WAY, view_note
from surehold.errors import CorruptError, NotFoundError, SureholdError, UsageError
from surehold.views.comparison import compare
from surehold.views.queues import read_queues
from surehold.views.run_page import RunView, read_run
from surehold.views.runs import Filter, read_runs
from surehold.views.stats import Figures
from surehold.views.values import last_writers, read_turns, state_at
from surehold.views.waiting import read_waiting, recorded_entry
from surehold.web.drawing import draw_growth, draw_times, graph_of
from surehold.web.rendering import pretty
from surehold.web.site import Site, asked, filter_of, named

TABS = ("conversation", "state", "effects", "timeline", "graph", "cost", "events", "raw")
_LISTED = 50
_MOST_STATE = 400_000
"""Characters of a state that a page shows."""


class Pages:
    """The handlers of pages that only read."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def runs(self, request: Request) -> Response:
        """List the runs."""
        wanted = filter_of(request)
        after = self._site.newest_record()
        found = read_runs(self._site.manager, self._site.texts, wanted)
        is_empty = not found.runs and wanted == Filter()
        return self._site.page(
            request,
            "runs.html",
            after=after,
            wanted=wanted,
            found=found,
            is_empty=is_empty,
            statuses=SHOWN_STATUSES,
        )

    def run(self, request: Request) -> Response:
        """Show one run, with one of its steps."""
        site = self._site
        after = site.newest_record()
        nested = bool(asked(request, "nested"))
        view = read_run(
            site.manager,
            named(request, "id"),
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
            after=after,
            view=view,
            head=header,
            nested=nested,
            tab=tab,
            tabs=TABS,
            shape=asked(request, "shape") or "delta",
            problem=problem.message if problem is not None else "",
            damaged=isinstance(problem, CorruptError),
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
        shown: dict[str, Any] = {
            "turns": turns,
            "state": "",
            "hidden": 0,
            "blame": {},
            "notes": [],
            "graph": graph_of(self._site.manager, view) if tab == "graph" else None,
            "times": draw_times(view.entries) if tab == "timeline" else None,
        }
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
        if view.summary.status in ("completed", *UNDER_WAY):
            return ""
        plan, problem = _tried(
            lambda: str(explain(self._site.manager.reader, None, view.run.run_id))
        )
        return plan or str(problem)

    def compare(self, request: Request) -> Response:
        """Compare two checkpoints."""
        a, b = asked(request, "a"), asked(request, "b")
        site, found = self._site, None
        if a and b:
            one, two = site.finder.checkpoint(a), site.finder.checkpoint(b)
            found = compare(site.manager, site.costs, one, two)
        return site.page(request, "compare.html", a=a or "", b=b or "", found=found)

    def waiting(self, request: Request) -> Response:
        """List what runs wait for, those of the newest runs first."""
        after = self._site.newest_record()
        before: int | None = asked(request, "before", int)
        found = read_waiting(self._site.manager, before)
        return self._site.page(request, "waiting.html", view=found, before=before, after=after)

    def queues(self, request: Request) -> Response:
        """Show the queues, the workers, and the queued runs."""
        after = self._site.newest_record()
        queue, state = asked(request, "queue"), asked(request, "state")
        if state not in (None, "ready", "running", "waiting", "dead", "cancelled"):
            raise UsageError(f"there is no state {state!r}")
        view = read_queues(self._site.manager, queue, state)
        return self._site.page(
            request, "queues.html", view=view, queue=queue or "", state=state or "", after=after
        )

    def storage(self, request: Request) -> Response:
        """Show the bytes by name, run, kind and time."""
        survey = self._site.surveys.storage()
        bars = draw_growth(survey.growth)
        return self._site.page(
            request, "storage.html", survey=survey, bars=bars, rules=self._site.rules
        )

    def health(self, request: Request) -> Response:
        """Show what is wrong: failures, stale runs, leases, resumes, damage."""
        reader = self._site.manager.reader
        survey = self._site.surveys.health()
        checked: list[RunVerdict] = []
        if asked(request, "verify"):
            checked = [verify_headers(reader, run) for run in survey.runs]
        figures = None
        if asked(request, "resumes"):
            figures = Figures()
            for run in survey.runs:
                _tried(partial(figures.take, reader, run))
        return self._site.page(
            request,
            "health.html",
            survey=survey,
            wrong=survey.wrong[:_LISTED],
            hidden=max(0, len(survey.wrong) - _LISTED),
            checked=checked,
            damaged=[one for one in checked if not one],
            resumes=sorted(figures.resumes.items()) if figures else None,
        )

    def event(self, request: Request) -> Response:
        """Show one record that is no checkpoint."""
        run_id, seq = named(request, "id"), asked(request, "seq", int)
        for record in self._site.manager.storage.read(run_id, first=seq, last=seq):
            if record.header.frame == "note":
                note = view_note(self._site.manager.reader, record)
                return self._site.page(request, "event.html", run_id=run_id, note=note)
        raise NotFoundError(f"run {run_id!r} has no note {seq}", run_id=run_id)


def _tried(read: Callable[[], Any]) -> tuple[Any, SureholdError | None]:
    """The value, or None and why there is none."""
    try:
        return read(), None
    except SureholdError as error:
        return None, error
