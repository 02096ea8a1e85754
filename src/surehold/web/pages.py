"""The pages: each is one function from a request to what a template shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from surehold.core.records import Header
from surehold.doors.resume import explain
from surehold.engine.repair import RunVerdict, verify_headers
from surehold.engine.runs import SHOWN_STATUSES, UNDER_WAY, NoteView, view_note
from surehold.errors import CorruptError, NotFoundError, SureholdError, UsageError
from surehold.views.comparison import compare
from surehold.views.forks import read_tree
from surehold.views.health import WRONG, free_bytes
from surehold.views.queues import read_queues
from surehold.views.run import (
    Past,
    RunView,
    as_markdown,
    facts_of_nodes,
    places_of,
    places_of_calls,
    read_overview,
    read_run,
    spending,
    turns_of_calls,
    with_old,
    without_begins,
)
from surehold.views.runs import Filter, errors_of, read_runs
from surehold.views.stats import Figures, newest_runs
from surehold.views.values import ChatTurn, last_writers, read_turns, state_at
from surehold.views.waiting import (
    WaitingPage,
    helped_by,
    how_to_resume,
    read_waiting,
    recorded_entry,
)
from surehold.views.words import value_text
from surehold.web.drawing import draw_forks, draw_growth, draw_strip, draw_times, graph_of
from surehold.web.rendering import pretty
from surehold.web.site import Site, asked, filter_of, named, status_of

TABS = (
    "overview",
    "conversation",
    "state",
    "effects",
    "timeline",
    "graph",
    "cost",
    "events",
    "raw",
)
_STEP = re.compile(r".+@\d+")
_WRONG_LISTED = 20
_CONTEXTS = 10
"""Runs that wait whose last messages are shown with the question."""
_BY = {
    "day": "By day",
    "name": "By name",
    "node": "By node",
    "model": "By model",
    "run": "The dearest runs",
}
_MOST_STATE = 400_000
"""Characters of a state that a page shows."""
_ROW = 100
"""Characters that a key of a state stands for, so that a page of short ones ends too."""


class Pages:
    """The handlers of pages that only read."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def runs(self, request: Request) -> Response:
        """List the runs."""
        wanted = filter_of(request)
        place = self._step_named(wanted.search)
        if place is not None:
            query = urlencode({"id": place.run_id, "step": place.step, "tab": "state"})
            return RedirectResponse(f"{request.scope.get('root_path', '')}/run?{query}", 303)
        after = self._site.newest_record()
        found = read_runs(self._site.manager, self._site.texts, wanted)
        is_empty = not found.runs and wanted == Filter()
        return self._site.page(
            request,
            "runs.html",
            after=after,
            wanted=wanted,
            found=found,
            errors=errors_of(self._site.manager, found.runs),
            helped_by=helped_by(self._site.manager, found.runs, self._site.graphs),
            is_empty=is_empty,
            statuses=SHOWN_STATUSES,
        )

    def _step_named(self, text: str) -> Header | None:
        """The checkpoint that a search names as ``RUN@41``, unless a run is called so."""
        if not _STEP.fullmatch(text) or self._site.manager.reader.run(text) is not None:
            return None
        place: Header | None = _tried(lambda: self._site.finder.checkpoint(text))[0]
        return place

    def run(self, request: Request) -> Response:
        """Show one run, with one of its steps."""
        site = self._site
        after = site.newest_record()
        nested = bool(asked(request, "nested"))
        step: int | None = asked(request, "step", int)
        view = read_run(
            site.manager,
            named(request, "id"),
            at=asked(request, "at", int),
            step=step,
            nested=nested,
        )
        header = view.chosen.header
        text, problem = _tried(lambda: state_at(site.manager, view.place))
        state: Any = msgspec.json.decode(text) if text else None
        said = [] if read_turns(state) else turns_of_calls(view.calls)
        turns = read_turns(state) or [turn for turn, _ in said]
        is_call = header.frame == "note"
        tab = asked(request, "tab") or (
            "overview"
            if view.follows
            else "effects"
            if is_call
            else "conversation"
            if turns
            else "state"
        )
        if tab not in TABS:
            raise NotFoundError(f"there is no tab {tab!r}")
        past = site.pasts.of(view.run)
        costs = spending(past, header.seq)
        strip = draw_strip(past, header.seq, view.forks)
        seconds = sum(one.seconds for one in past.moments if not one.is_resumed)
        near = {entry.header.seq for entry in view.entries}
        shown = Past(moments=[one for one in past.moments if one.seq in near])
        return site.page(
            request,
            "run.html",
            after=after,
            view=view,
            head=header,
            place=view.place,
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
            over=read_overview(site.manager, view, state, turns, site.graphs, seconds),
            strip=strip,
            lens=draw_strip(shown, header.seq, view.forks)
            if strip and strip.per_cell > 1
            else None,
            moments={one.seq: one for one in shown.moments},
            missed_step=step if step is not None and step != header.step else None,
            answered=[one for one in view.after if one.kind == "answer"][-1:]
            if not any(one.kind == "question" for one in view.after[-1:])
            else [],
            markdown=as_markdown(view, turns, costs),
            **self._of_tab(view, tab, request, text or b"", turns, said),
        )

    def _of_tab(
        self,
        view: RunView,
        tab: str,
        request: Request,
        text: bytes,
        turns: list[Any],
        said: list[tuple[ChatTurn, NoteView]],
    ) -> dict[str, Any]:
        """The values that only one tab shows."""
        shown: dict[str, Any] = {
            "turns": turns,
            "state": "",
            "hidden": 0,
            "keys": [],
            "blame": [],
            "places": {},
            "changes": [],
            "models": [],
            "notes": [],
            "graph": None,
            "times": draw_times(view.entries) if tab == "timeline" else None,
        }
        values = msgspec.json.decode(text, type=dict[str, msgspec.Raw]) if text else {}
        if tab == "raw":
            whole = pretty(text) if text else ""
            shown |= {"state": whole[:_MOST_STATE], "hidden": max(0, len(whole) - _MOST_STATE)}
        if tab == "state" and asked(request, "shape") == "full":
            left = _MOST_STATE
            for key, value in values.items():
                whole = pretty(bytes(value)) if left > 0 else ""
                if whole:
                    shown["keys"].append((key, whole[:left]))
                shown["hidden"] += max(0, len(whole or bytes(value)) - max(0, left))
                left -= len(key) + len(whole) + _ROW
        if tab == "state" and asked(request, "shape") == "blame" and text:
            writers = last_writers(self._site.manager, view.run, view.place, [*values])
            prices = {one.seq: one.dollars for one in self._site.pasts.of(view.run).moments}
            shown["blame"] = [
                (key, by, prices.get(by.seq) if by else None, value_text(values[key], 120))
                for key, by in writers.items()
            ]
        if tab == "state" and (asked(request, "shape") or "delta") == "delta":
            shown["changes"] = with_old(self._site.manager, view)
        if tab == "graph":
            facts = facts_of_nodes(self._site.pasts.of(view.run), view.chosen.header.seq)
            shown["graph"] = graph_of(self._site.manager, view, facts)
        if tab == "conversation":
            shown["places"] = places_of_calls(said) if said else places_of(view, turns)
        if tab == "cost":
            past = self._site.pasts.of(view.run)
            shown["models"] = spending(past, view.chosen.header.seq, "model")
        if tab == "events":
            notes = [note for entry in view.entries for note in reversed(entry.notes)]
            shown["notes"] = without_begins([*reversed(view.after), *notes])
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
        """Describe what a resume would do, for an unfinished run that can be resumed."""
        if view.summary.status in ("completed", *UNDER_WAY):
            return ""
        plan, _ = _tried(lambda: str(explain(self._site.manager.reader, None, view.run.run_id)))
        return plan or ""

    def compare(self, request: Request) -> Response:
        """Compare two checkpoints."""
        picked = request.query_params.getlist("pick")
        if len(picked) not in (0, 2):
            return self.forks(request, picked)
        a, b = picked or (asked(request, "a"), asked(request, "b"))
        site, found = self._site, None
        wrong: SureholdError | None = None
        if a and b:
            try:
                one, two = site.finder.checkpoint(a), site.finder.checkpoint(b)
                found = compare(site.manager, site.pasts, one, two)
            except (NotFoundError, UsageError) as error:  # said in the form, with what was written
                wrong = error
        return site.page(
            request,
            "compare.html",
            status=status_of(wrong) if wrong else 200,
            a=a or "",
            b=b or "",
            found=found,
            newest=[] if found else read_runs(site.manager, site.texts, Filter()).runs,
            wrong=wrong,
            near=wrong.facts.get("near", ()) if wrong else (),
            is_first=bool(wrong and wrong.facts.get("run_id") == a),
        )

    def forks(self, request: Request, picked: Sequence[str] = ()) -> Response:
        """Show the family of a run as a tree, of which two are ticked to be compared.

        Ticked first are two tips, and the run itself if it is a tip. A comparison of *picked* runs
        that are not two comes back here.
        """
        site = self._site
        run_id = picked[0] if picked else named(request, "id")
        tree = read_tree(site.manager, run_id).runs
        origins = {run.forked_from.run_id for run in tree if run.forked_from}
        tips = [run.run_id for run in tree if run.run_id not in origins]
        tips.sort(key=run_id.__eq__)
        return site.page(
            request,
            "forks.html",
            status=400 if picked else 200,
            run_id=run_id,
            tree=tree,
            picked=len(picked),
            ticked=picked or (tips if len(tips) > 1 else [run.run_id for run in tree])[-2:],
            drawing=draw_forks(tree),
        )

    def costs(self, request: Request) -> Response:
        """Show what was spent, over all runs."""
        report = self._site.surveys.costs()
        kinds = {kind: [row for row in report.rows if row.by == kind] for kind in _BY}
        return self._site.page(request, "costs.html", report=report, kinds=kinds)

    def waiting(self, request: Request) -> Response:
        """List what runs wait for, those of the newest runs first."""
        after = self._site.newest_record()
        before: int | None = asked(request, "before", int)
        found = read_waiting(self._site.manager, before)
        return self._site.page(
            request,
            "waiting.html",
            view=found,
            before=before,
            after=after,
            context=self._said_before(found),
            given={},
            wrong=None,
        )

    def _said_before(self, found: WaitingPage) -> dict[str, list[ChatTurn]]:
        """The last messages of the first runs that ask."""
        said: dict[str, list[ChatTurn]] = {}
        for run_id in [*dict.fromkeys(one.run_id for one in found.found)][:_CONTEXTS]:
            newest = self._site.manager.reader.newest(found.runs[run_id])
            if newest is not None and newest.size <= _MOST_STATE:
                text, _ = _tried(partial(state_at, self._site.manager, newest))
                said[run_id] = read_turns(msgspec.json.decode(text))[-3:] if text else []
        return said

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
            request,
            "storage.html",
            survey=survey,
            bars=bars,
            rules=self._site.rules,
            free=free_bytes(self._site.address),
        )

    def health(self, request: Request) -> Response:
        """Show what is wrong: failures, stale runs, leases, resumes, damage."""
        manager = self._site.manager
        reader = manager.reader
        survey = self._site.surveys.health()
        checked: list[RunVerdict] = []
        if asked(request, "verify"):
            checked = [verify_headers(reader, run) for run in newest_runs(manager)[0]]
        figures = None
        if asked(request, "resumes"):
            figures = Figures()
            for run in newest_runs(manager)[0]:
                _tried(partial(figures.take, reader, run))
        site = self._site
        wrong = [
            (run, status, how_to_resume(site.manager, run, site.graphs))
            for run, status in survey.wrong[:_WRONG_LISTED]
        ]
        return site.page(
            request,
            "health.html",
            survey=survey,
            wrong=wrong,
            hidden=sum(survey.counts.get(one, 0) for one in WRONG) - len(wrong),
            errors=errors_of(
                site.manager,
                [msgspec.structs.replace(run, status=shown) for run, shown, _ in wrong],
            ),
            checked=checked,
            damaged=[one for one in checked if not one],
            resumes=sorted(figures.resumes.items()) if figures else None,
        )

    def event(self, request: Request) -> Response:
        """Show one record that is not a checkpoint."""
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
