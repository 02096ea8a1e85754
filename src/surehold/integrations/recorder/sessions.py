"""`surehold.record` and `surehold.replay`, for the calls of this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from surehold.agents.models import Prices
from surehold.core.policy import Ending, RunFacts, ending_of
from surehold.core.records import check_run_id
from surehold.errors import NotFoundError, ShapeError, UsageError
from surehold.integrations.recorder.calls import RecordedCall
from surehold.integrations.recorder.inside import Divergence, Selection, install, playing
from surehold.integrations.recorder.recording import (
    InDoubt,
    MatchRules,
    OnDivergence,
    Recording,
)
from surehold.integrations.recorder.shelves import FileShelf, RunShelf, StoredCalls, Where

COMPLETED = Ending(status="completed", kind="final")


@contextmanager
def record(
    run_id: str,
    *,
    storage: Where = None,
    name: str = "",
    urls: Sequence[str] = (),
    passing: Sequence[str] = (),
    on_divergence: OnDivergence = "stop",
    in_doubt: InDoubt | None = None,
    loose: bool = False,
    prices: Prices | None = None,
) -> Iterator[Recording]:
    """Record the model calls that this process makes in the block, as a run.

    Started again after a crash, the block gets the recorded answers, and its first new call is
    live. Calls are recognised by path and body; *urls* are patterns of others to record, such as
    ``https://search.example/*``, and *passing* of those to leave alone. A request that fits no
    recorded one while others are left is a `ShapeError`, or live with ``on_divergence="live"``;
    *loose* overlooks times, ids, addresses and temporary names.

    With ``in_doubt="ask"``, a request to one of *urls* that may change something (no GET) is
    recorded before it is sent. If the process died before its answer was recorded, the next start
    is `Interrupted`: the run waits until `surehold.answer` gives what it returned, or
    ``repeat=True``. ``"retry"`` sends it again, as happens to all others.

    The run of a block that ended well is completed: started again, it gives what was recorded,
    and a new call is a `ShapeError`.

    >>> with record("research-7", storage="memory://") as recording:
    ...     pass  # call any model, with any client
    >>> recording.live
    0
    """
    rules = MatchRules(on_divergence=on_divergence, in_doubt=in_doubt, loose=loose, prices=prices)
    selection = selection_of(urls, passing)
    facts: dict[str, Any] = {"in_doubt": in_doubt} if in_doubt else {}
    shelf = RunShelf(check_run_id(run_id), storage, name, **facts)
    try:
        rules = msgspec.structs.replace(rules, offline=shelf.completed)
        recording = Recording(
            shelf,
            rules,
            selection=selection,
            where=f"run {run_id}",
            intents=shelf if shelf.asks(in_doubt) else None,
            check=shelf.check,
        )
        try:
            if in_doubt != "retry":
                shelf.check_doubt()
            with _playing(recording):
                yield recording
        except BaseException as error:
            if not shelf.completed:
                _end(shelf, recording, error)
            raise
        if not shelf.completed:
            shelf.end(COMPLETED, None, recording.count, recording.told())
    finally:
        shelf.close()


def _end(shelf: RunShelf, recording: Recording, error: BaseException) -> None:
    facts = RunFacts(run_id=shelf.run_id, lost=shelf.lost())
    ending = ending_of(error, facts)
    if not ending.saves and ending.gives != "lost":
        return
    try:
        shelf.end(ending, error, recording.count, recording.told())
    except Exception as failure:  # whatever it is, it must not hide the user's error
        error.add_note(f"surehold: the end of run {shelf.run_id!r} was not saved: {failure}")


@contextmanager
def replay(
    source: str | Path, *, storage: Where = None, urls: Sequence[str] = (), loose: bool = False
) -> Iterator[Recording]:
    """Answer the model calls of the block from a recording.

    *source* is the id of a run, or the path of a file: a recording of the test plugin, or a run
    that `surehold export` wrote. A request that was not recorded is a `ShapeError` that shows the
    nearest recorded one. *urls* and *loose* are as in `record`.
    """
    if is_file(source):
        calls = StoredCalls(calls_in(source))
    else:
        calls = StoredCalls.of(str(source), storage)
    rules = MatchRules(offline=True, loose=loose)
    selection = selection_of(urls)
    recording = Recording(calls, rules, selection=selection, where=f"replay of {source}")
    with _playing(recording):
        yield recording


@contextmanager
def offline(where: str) -> Iterator[None]:
    """Refuse the model calls of the block with a `Divergence` that names *where*."""
    install()
    with playing(Recording(StoredCalls([]), MatchRules(offline=True), where=where)):
        yield


@contextmanager
def record_in_file(
    path: Path,
    mode: str,
    *,
    where: str,
    urls: Sequence[str] = (),
    loose: bool = False,
) -> Iterator[Recording]:
    """Answer the calls of a test from the file at *path*.

    *mode* is ``none``; ``new``, which records what is missing; or ``all``, which records
    everything anew. A block that raises leaves the file as it was.
    """
    shelf = FileShelf(path)
    if not shelf.exists and mode == "none":
        raise no_recording(path)
    if mode == "all":
        shelf.clear()
    rules = MatchRules(offline=mode == "none", on_divergence="live", loose=loose)
    recording = Recording(shelf, rules, selection=selection_of(urls), where=where)
    with _playing(recording):
        yield recording
    if mode != "none":
        shelf.save(unused=recording.left())


def selection_of(urls: Sequence[str], passing: Sequence[str] = ()) -> Selection:
    """The selection of these patterns; one text in place of a list is a `UsageError`."""
    for name, given in (("urls", urls), ("passing", passing)):
        if isinstance(given, str):
            raise UsageError(f"{name} is a text, not a list of URLs", hint=f"{name}=[{given!r}]")
    return Selection(tuple(urls), tuple(passing))


def no_recording(path: str | Path) -> NotFoundError:
    """The error for a file that is not there."""
    return NotFoundError(
        f"there is no recording {str(path)!r}",
        hint="pytest --surehold-record=new records one; surehold export writes a run",
    )


def is_file(source: str | Path) -> bool:
    """True if *source* names a file, not a run."""
    return isinstance(source, Path) or Path(source).suffix in (".surehold", ".jsonl", ".json")


def calls_in(source: str | Path) -> list[RecordedCall]:
    """The recorded calls of a file."""
    path = Path(source)
    if not path.exists():
        raise no_recording(path)
    return list(FileShelf(path).calls())


@contextmanager
def _playing(recording: Recording) -> Iterator[None]:
    """Play *recording*; a divergence is raised as a `ShapeError`, whatever hid it."""
    install()
    try:
        with playing(recording):
            yield
    except Divergence as error:
        raise diverged(str(error)) from None
    if recording.diverged and recording.stops:
        raise diverged(recording.diverged)


def diverged(text: str) -> ShapeError:
    """The error of a program that asks for what was not recorded."""
    return ShapeError(text)
