"""Addresses of runs and checkpoints on a command line.

========== ==================================================================
RUN        a run's id, the name of runs (the newest of them), or a unique
           prefix of an id
latest     the run that was saved last
RUN@12     its newest checkpoint of step 12, or else the last one before
RUN~2      two checkpoints before its newest; RUN@12~2 before that of step 12
tag:NAME   the newest checkpoint with that tag, in any run
ID         a checkpoint's id, or a unique prefix of it
========== ==================================================================

An exact run id wins, whatever is in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from surehold.core.records import Header
from surehold.engine.managers import CheckpointManager
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RecordQuery, RunInfo, RunQuery, Storage
from surehold.views.runs import did_you_mean, runs_near

_ADDRESS = re.compile(r"(?P<run>.*?)(?:@(?P<step>[0-9]{1,18}))?(?:~(?P<back>[0-9]{0,9}))?", re.S)
_PATH = re.compile(r"(?P<address>.*):(?P<path>(?:state|metadata)(?:[.\[].*)?)", re.S)
_SHOWN = 5
_SHORTEST_ID = 4
_COUNTED = 100
"""The most runs of one name that are counted."""


class Parsed(NamedTuple):
    """The parts of an address."""

    run: str
    step: int | None = None
    back: int = 0


def parse(text: str) -> Parsed:
    """Split an address into its parts.

    >>> parse("nightly@12~2")
    Parsed(run='nightly', step=12, back=2)
    """
    found = _ADDRESS.fullmatch(text)
    assert found is not None
    step, back = found["step"], found["back"]
    return Parsed(
        found["run"], None if step is None else int(step), 0 if back is None else int(back or 1)
    )


def split_path(text: str) -> tuple[str, str]:
    """An address, and the path into what it names.

    >>> split_path("nightly@12:state.messages[-1]"), split_path("tag:good")
    (('nightly@12', 'state.messages[-1]'), ('tag:good', 'state'))
    """
    found = _PATH.fullmatch(text)
    return (found["address"], found["path"]) if found else (text, "state")


class Finder:
    """Finds runs and checkpoints by their addresses."""

    def __init__(
        self, manager: CheckpointManager, say: Callable[[str], None] | None = None
    ) -> None:
        """*say* is called with the run that was chosen where a name has several."""
        self._reader = manager.reader
        self._storage = manager.storage
        self._retention = manager.retention
        self._say = say
        self._said: set[str] = set()

    def runs(self, texts: Iterable[str] | None) -> list[RunInfo]:
        """The runs that are named, or all."""
        if not texts:
            return list(self._storage.runs(RunQuery()))
        return list({run.run_id: run for run in map(self.run, texts)}.values())

    def run(self, text: str) -> RunInfo:
        """The run that *text* names, or whose checkpoint it names."""
        run = self._exact(text)
        if run is not None:
            return run
        parsed = parse(text)
        if text.startswith("tag:") or (run := self._run(parsed.run)) is None:
            header = self.checkpoint(text)
            run = self._reader.run(header.run_id)
        if run is None:
            raise _no_run(self._storage, text)
        return run

    def earlier(self, text: str) -> Header | None:
        """The checkpoint that *text* names; None for the newest checkpoint of a run."""
        header = self._checkpoint(text)
        newest = self._reader.newest_of(header.run_id)
        return None if newest is None or newest.seq == header.seq else header

    def checkpoint(self, text: str) -> Header:
        """The checkpoint that *text* names, with its current tags."""
        return self._retention.with_tags(self._checkpoint(text))

    def _checkpoint(self, text: str) -> Header:
        if text.startswith("tag:") and self._exact(text) is None:
            return self._tagged(text.removeprefix("tag:"))
        run = self._exact(text)
        parsed = Parsed(text) if run is not None else parse(text)
        run = run or self._run(parsed.run)
        if run is None:
            return self._by_id(text)
        if parsed.step is None and not parsed.back:
            newest = self._reader.newest(run)
            if newest is not None:
                return newest
        return self._walk(run, parsed)

    def _walk(self, run: RunInfo, parsed: Parsed) -> Header:
        """Walk back from the newest checkpoint to the step, and then further."""
        headers = self._storage.headers(RecordQuery(run_id=run.run_id, scope=""))
        newest = last = None
        for last in headers:
            newest = newest or last
            if parsed.step is None or last.step <= parsed.step:
                break
        else:
            last = None
        if newest is None:
            raise NotFoundError(f"run {run.run_id!r} has no checkpoint", run_id=run.run_id)
        if last is None or (parsed.step or 0) > newest.step:
            raise _no_step(run, parsed, newest)
        found = next(islice(headers, parsed.back - 1, None), None) if parsed.back else last
        if found is None:
            raise NotFoundError(
                f"run {run.run_id!r} has no checkpoint {parsed.back} before that of step"
                f" {last.step}",
                hint=f"surehold log {run.run_id} lists them",
                run_id=run.run_id,
            )
        return found

    def _exact(self, text: str) -> RunInfo | None:
        return self._reader.run(text) if text else None

    def _run(self, text: str) -> RunInfo | None:
        """A run by id, ``latest``, name or prefix; None if there is none."""
        if not text:
            raise UsageError(
                "no run is named: the argument is empty",
                hint="give a run's id or name, or latest; surehold runs lists them",
            )
        run = self._exact(text)
        if run is None and text == "latest":
            newest = next(iter(self._storage.headers(RecordQuery(limit=1))), None)
            if newest is None:
                raise NotFoundError(
                    "there are no runs yet", hint="surehold demo makes some", run_id=text
                )
            run = self._reader.run(newest.run_id)
        if run is None:
            run = self._newest_of(text)
        if run is None:
            runs = self._storage.runs(RunQuery())
            found = (run for run in runs if run.run_id.startswith(text))
            run = self._only(text, list(islice(found, _SHOWN + 1)))
        return run

    def _newest_of(self, name: str) -> RunInfo | None:
        """The newest run of that name; if there are others, say so once."""
        quiet = self._say is None or name in self._said
        query = RunQuery(name=name, limit=1 if quiet else _COUNTED + 1)
        found = list(self._storage.runs(query))
        if len(found) > 1 and self._say is not None:
            self._said.add(name)
            count = str(len(found)) if len(found) <= _COUNTED else f"more than {_COUNTED}"
            self._say(
                f"using {found[0].run_id}, the newest of {count} runs named {name!r}"
                f" (surehold runs {name} lists them; an id names one)"
            )
        return found[0] if found else None

    def _only(self, text: str, found: list[RunInfo]) -> RunInfo | None:
        if len(found) > 1:
            names = ", ".join(run.run_id for run in found[:_SHOWN])
            more = ", ..." if len(found) > _SHOWN else ""
            raise UsageError(
                f"several runs begin with {text!r}: {names}{more}",
                hint="give more of the id",
                candidates=[run.run_id for run in found],
            )
        return found[0] if found else None

    def _tagged(self, tag: str) -> Header:
        found = self._retention.listed(RecordQuery(tag=tag, limit=1))
        if not found:
            raise NotFoundError(
                f"no checkpoint is tagged {tag!r}", hint="surehold tag RUN@N NAME tags one", tag=tag
            )
        return found[0]

    def _by_id(self, text: str) -> Header:
        if len(text) < _SHORTEST_ID or not self._storage.find(text):
            raise _no_run(self._storage, text)
        return self._reader.resolve(text)


def _no_run(storage: Storage, text: str) -> NotFoundError:
    near = runs_near(storage, parse(text).run)
    hint = did_you_mean(near, "surehold runs lists them")
    return NotFoundError(f"no run, name or checkpoint {text!r}", hint=hint, run_id=text, near=near)


def _no_step(run: RunInfo, parsed: Parsed, newest: Header) -> NotFoundError:
    later = (parsed.step or 0) > newest.step
    is_at = f"is at step {newest.step}" if later else "has nothing that early"
    return NotFoundError(
        f"run {run.run_id!r} {is_at}, not {parsed.step}",
        hint=f"surehold log {run.run_id} lists its checkpoints, those of left branches too;"
        f" {run.run_id}~N is N before the newest",
        run_id=run.run_id,
        step=parsed.step,
    )
