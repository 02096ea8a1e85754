"""A run as one file: the same page, with all its steps, that needs nothing else.

The file has no script and fetches nothing. It shows fifty steps at a time, so that a run of ten
thousand checkpoints opens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
from markupsafe import Markup

from surehold.core.records import Header
from surehold.engine.managers import CheckpointManager
from surehold.errors import NotFoundError, SureholdError
from surehold.storage.base import RecordQuery, RunInfo
from surehold.views.run import (
    Pasts,
    facts_of_nodes,
    read_overview,
    read_run,
    spending,
    turns_of_calls,
)
from surehold.views.runs import summaries
from surehold.views.timeline import entries_from
from surehold.views.values import read_turns, state_at
from surehold.web.drawing import draw_strip, draw_times, graph_of
from surehold.web.rendering import Assets, make_environment, pretty

_PER_PAGE = 50
_STATES = 200
_STATES_BYTES = 20 << 20
"""States that are written in full, of the newest steps; of older ones only the changes are."""


def run_file(manager: CheckpointManager, run: RunInfo) -> Iterator[str]:
    """The file, part by part."""
    headers = list(manager.storage.headers(RecordQuery(run_id=run.run_id, scope="")))
    if not headers:
        raise NotFoundError(f"run {run.run_id!r} has no checkpoint", run_id=run.run_id)
    view = read_run(manager, run.run_id, at=None, step=None, nested=False)
    pages = [headers[at : at + _PER_PAGE] for at in range(0, len(headers), _PER_PAGE)]
    made = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
    assets = Assets()
    state: Any = msgspec.json.decode(state_at(manager, headers[0]))
    turns = read_turns(state) or [turn for turn, _ in turns_of_calls(view.calls)]
    past = Pasts(manager).of(run)
    costs = spending(past, run.seq)
    seconds = sum(one.seconds for one in past.moments if not one.is_resumed)
    module: Any = make_environment().get_template("file.html").make_module()
    yield str(
        module.head(
            run=summaries(manager.retention, manager.storage, [run])[0],
            style=Markup(assets.text("page.css")),  # our own file
            integrity=assets.integrity("page.css"),
            graph=graph_of(manager, view, facts_of_nodes(past, run.seq)),
            times=draw_times(view.entries),
            pages=[(at + 1, page[0].step, page[-1].step) for at, page in enumerate(pages)],
            after=view.after,
            made=made,
            strip=draw_strip(past, run.seq, view.forks),
            over=read_overview(manager, view, state, turns, {}, seconds),
            turns=turns,
            costs=costs,
            dollars=sum(one.dollars for one in costs),
            error=view.chosen.error,
        )
    )
    states = _states(manager, headers)
    for at, page in enumerate(pages):
        older = pages[at + 1][0].seq if at + 1 < len(pages) else 0
        upto = msgspec.structs.replace(run, seq=page[0].seq)
        entries, _ = entries_from(manager.reader, manager.retention, upto, older + 1, page)
        panels = [(entry, next(states, None)) for entry in reversed(entries)]
        yield str(module.page(number=at + 1, panels=panels))
    yield str(module.tail(made=made))


def _states(manager: CheckpointManager, headers: Sequence[Header]) -> Iterator[str | None]:
    """The newest states as text, as far as there is room."""
    left = _STATES_BYTES
    for header in headers[:_STATES]:
        try:
            text = state_at(manager, header)
        except SureholdError as error:
            yield str(error)
            continue
        left -= len(text)
        if left < 0:
            return
        yield pretty(text)
