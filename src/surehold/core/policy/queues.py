"""Queues of runs: entries, the choice of the next, the fate of a stopped run.

A storage keeps one entry for each queued run beside the run's head, changed in the same commit as
the records it follows from; see `change_of`. The entry can be made again from the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from surehold.core.records import OVER, Header, Record
from surehold.errors import UsageError

QUEUED, CANCEL, DEAD, ANSWERED = "queued", "cancel", "dead", "answered"
"""Kinds of the notes that an entry follows from. ``answered`` tells a run that one inside it got
an answer."""
CANCELLED = "it was cancelled"
"""The reason for which a run is stopped that someone has asked to cancel."""
MESSAGE = "message"
"""The kind of a message to a run, which wakes it as an answer does."""

EntryState = Literal["ready", "waiting", "running", "dead", "cancelled"]

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0
"""Seconds between two resumes of a run that fails; each pause is twice as long."""
_LEAST_WAIT = 0.25
"""Seconds that a wait lasts at least, so that a clock that is behind causes no busy loop."""


class Submission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to run: kept in the header of the note of kind ``queued``."""

    queue: str = "default"
    target: str
    """The code that can run it: ``module:name@version``."""
    priority: int = 0
    """Higher ones first."""
    key: str = ""
    """Runs of different keys take turns; limits may be per key."""
    due: float | None = None
    """The earliest start, in seconds since 1970."""

    @classmethod
    def of(cls, header: Header) -> Submission | None:
        """Read the submission that a note's header holds; None if it holds none."""
        told = header.metadata.get(QUEUED)
        if header.frame != "note" or header.kind != QUEUED or not isinstance(told, dict):
            return None
        return msgspec.convert(told, cls)


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one queue; None means no limit."""

    concurrency: int | None = None
    """Runs that execute at the same time."""
    key_concurrency: int | None = None
    """Runs of one key that execute at the same time."""
    rate: int | None = None
    """Starts in each *period*."""
    period: float = 60.0
    attempts: int = 5
    """Failures without a new step between them after which a run becomes a dead letter."""
    paused: bool = False
    """True while the queue is paused: no run of it is started."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "key_concurrency", "rate", "attempts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}", hint="give 1 or more, or none for no limit")
        if self.period <= 0:
            raise UsageError(f"period is {self.period}", hint="give a number of seconds above 0")

    @property
    def limited(self) -> bool:
        """True if starts have to be counted."""
        return self.paused or any(
            limit is not None for limit in (self.concurrency, self.key_concurrency, self.rate)
        )


class QueueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A queued run as the index has it."""

    run_id: str
    queue: str
    target: str
    state: EntryState
    priority: int = 0
    key: str = ""
    rank: float = 0.0
    """Order among entries of one priority; see `next_rank`."""
    due: float | None = None
    """Seconds since 1970 at which it becomes ready; None if only an answer makes it so."""
    failures: int = 0
    """Failures and deaths of its worker in a row, since it last recorded a new step."""
    reason: str = ""
    """Why it failed the last time."""
    woken: bool = False
    """An answer came while it was running."""
    cancelled: bool = False
    """Someone asked to cancel it."""


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its limits and the number of its runs by state."""

    name: str
    settings: QueueSettings = QueueSettings()
    ready: int = 0
    waiting: int = 0
    running: int = 0
    dead: int = 0
    cancelled: int = 0


class Unserved(msgspec.Struct, frozen=True, kw_only=True):
    """Ready runs that no worker takes."""

    queue: str
    target: str
    """The code that they need: ``module:name@version``."""
    runs: int


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that executes queued runs, or waits for some."""

    host: str
    pid: int
    queues: list[str]
    """The queues it takes runs from; empty if the worker did not announce itself."""
    serves: list[str]
    """The code that it has: ``module:name@version``."""
    concurrency: int
    """Runs that it can execute at the same time."""
    started_at: datetime | None
    seen_at: datetime | None
    """The time of its last announcement."""
    runs: list[str]
    """Those it executes."""


class QueueChange(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of a batch of records for the entry of their run.

    A batch may hold a whole run that is imported or copied. All but `submitted` came after it.
    """

    submitted: Submission | None = None
    ended: bool = False
    answered: bool = False
    cancelled: bool = False
    dead: str | None = None
    """The reason, if it became a dead letter."""


def target_of(entry_point: str, version: int) -> str:
    """The code that a run needs, as entries and workers name it.

    >>> target_of("app:nightly", 2)
    'app:nightly@2'
    """
    return f"{entry_point}@{version}"


def change_of(records: Iterable[Record]) -> QueueChange | None:
    """The change that *records* make to the entry of their run; None for most batches."""
    change: dict[str, Any] = {}
    for record in records:
        header = record.header
        if header.frame != "note":
            if header.status in OVER and not header.scope:
                change["ended"] = True
        elif header.kind == QUEUED:
            change = {"submitted": Submission.of(header)}
        elif header.kind in ("answer", "effect"):
            # Of effects, only the outcome that someone outside gave to one in doubt matters.
            if header.kind == "answer" or not header.epoch:
                change["answered"] = True
        elif header.kind == ANSWERED or header.kind == MESSAGE:
            change["answered"] = True
        elif header.kind == CANCEL:
            change["cancelled"] = True
            change.pop("dead", None)
        elif header.kind == DEAD:
            change["dead"] = str(header.metadata.get("reason", ""))
    return QueueChange(**change) if change else None


def after_change(
    entry: QueueEntry | None, change: QueueChange, *, run_id: str, rank: float, now: float
) -> QueueEntry | None:
    """The entry of a run once *change* is stored; None if it has none.

    *rank* orders the run if it is queued now; see `next_rank`.
    """
    if change.ended:
        return None
    given = change.submitted
    if given is not None:
        later = given.due is not None and given.due > now
        entry = QueueEntry(
            run_id=run_id,
            queue=given.queue,
            target=given.target,
            state="waiting" if later else "ready",
            priority=given.priority,
            key=given.key,
            rank=rank,
            due=given.due if later else None,
        )
    if entry is None:
        return None
    replace = msgspec.structs.replace
    if change.dead is not None:
        return replace(entry, state="dead", reason=change.dead, due=None)
    if entry.state == "running":
        woken = entry.woken or change.answered
        return replace(entry, woken=woken, cancelled=entry.cancelled or change.cancelled)
    if change.cancelled and entry.state in ("ready", "waiting", "dead"):
        return replace(entry, state="ready", rank=now, due=None, cancelled=True)
    if change.answered and entry.state == "waiting":
        return replace(entry, state="ready", rank=now, due=None)
    return entry


def after_drive(
    entry: QueueEntry,
    outcome: Literal["waiting", "interrupted", "failed", "unfit"],
    settings: QueueSettings,
    *,
    now: float,
    due: float | None = None,
    reason: str = "",
    progressed: bool = False,
) -> QueueEntry:
    """The entry of a run that a worker has executed and that is not completed.

    ``interrupted`` runs are ready again, for another worker; ``failed`` ones after a pause, and
    never again after `QueueSettings.attempts` failures in a row; ``unfit`` ones are dead letters
    at once, because their code or data must change first. A failure after the run *progressed* is
    the first of a row. A run that was claimed to be ended, or that stopped because someone asked to
    cancel it, is given out no more. The storage gives out once more a run that waits if someone has
    asked to cancel it since it was claimed.
    """
    replace = msgspec.structs.replace
    entry = replace(entry, woken=False)
    if entry.cancelled:
        return replace(entry, state="cancelled", due=None)
    if outcome == "waiting":
        wakes = None if due is None else max(due, now + _LEAST_WAIT)
        return replace(entry, state="waiting", due=wakes, failures=0, reason="")
    if outcome == "interrupted":
        return replace(entry, state="ready", rank=now, due=None)
    failures = 1 if progressed else entry.failures + 1
    if outcome == "unfit" or failures >= settings.attempts:
        return replace(entry, state="dead", due=None, failures=failures, reason=reason)
    pause = _pause_after(failures)
    return replace(entry, state="waiting", due=now + pause, failures=failures, reason=reason)


def after_death(
    entry: QueueEntry, settings: QueueSettings, *, now: float, progressed: bool
) -> QueueEntry:
    """The entry of a run whose worker died, or lost touch for longer than its lease.

    A run that kills its worker cannot be told from one whose worker was killed. So a death counts
    as a failure unless the run *progressed*: recorded a new step before it.
    """
    replace = msgspec.structs.replace
    entry = replace(entry, woken=False, due=None)
    if progressed:
        return replace(entry, state="ready", rank=now, failures=0, reason="")
    failures, reason = entry.failures + 1, "its worker died or lost its lease"
    if failures >= settings.attempts:
        return replace(entry, state="dead", failures=failures, reason=reason)
    if failures == 1:
        return replace(entry, state="ready", rank=now, failures=1, reason=reason)
    due = now + _pause_after(failures - 1)
    return replace(entry, state="waiting", due=due, failures=failures, reason=reason)


def _pause_after(failures: int) -> float:
    return min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE)  # type: ignore[no-any-return]


def order_of(entry: QueueEntry) -> tuple[int, float]:
    """The order in which ready runs start: priority, then turns of keys and age.

    >>> entry = QueueEntry(run_id="a", queue="q", target="m:f@1", state="ready", priority=2)
    >>> order_of(entry)
    (-2, 0.0)
    """
    return (-entry.priority, entry.rank)


def next_rank(now: float, newest: float | None) -> float:
    """The rank of a run that is queued now, behind the ready ones of its key.

    *newest* is the highest rank of its key among the ready ones, None if there are none. Each run
    of a key is ranked a second after the one before it, so that a key with one run waits for the
    first of a key with a thousand, and not for the last.

    >>> next_rank(100.0, None), next_rank(100.0, 100.0)
    (100.0, 101.0)
    """
    return now if newest is None else max(now, newest + 1.0)


def choose(
    candidates: Iterable[QueueEntry],
    room: Mapping[str, int | None],
    key_room: Mapping[tuple[str, str], int],
    most: int,
) -> list[QueueEntry]:
    """Up to *most* of the *candidates*, in order, as far as their queues have room.

    *room* is that of each queue, None for any number; *key_room* that of keys in queues that limit
    them.
    """
    left, left_of_key, chosen = dict(room), dict(key_room), list[QueueEntry]()
    for entry in sorted(candidates, key=order_of):
        if len(chosen) == most:
            break
        place = (entry.queue, entry.key)
        free = left.get(entry.queue)
        if (free is not None and free < 1) or left_of_key.get(place, 1) < 1:
            continue
        if free is not None:
            left[entry.queue] = free - 1
        if place in left_of_key:
            left_of_key[place] -= 1
        chosen.append(entry)
    return chosen


def allowed(settings: QueueSettings, *, running: int, recent: int) -> int | None:
    """The number of further runs of a queue that may start; None for any number.

    *running* counts those that execute, *recent* the starts within the last period.

    >>> allowed(QueueSettings(concurrency=3, rate=10), running=1, recent=9)
    1
    """
    if settings.paused:
        return 0
    limits = ((settings.concurrency, running), (settings.rate, recent))
    left = [limit - used for limit, used in limits if limit is not None]
    return max(min(left), 0) if left else None
