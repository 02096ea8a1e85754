"""The recording of a run: the answers that requests get, and those that are kept."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

import msgspec

from surehold.agents.models import Prices
from surehold.core.values import Usage
from surehold.errors import UsageError
from surehold.integrations.recorder.billing import read_usage
from surehold.integrations.recorder.calls import RecordedCall, facts_of, position
from surehold.integrations.recorder.inside import (
    Asked,
    HttpAnswer,
    Selection,
    Tape,
    TapeClaim,
    key_of,
    masked,
    own_state,
)
from surehold.integrations.recorder.matching import explain

logger = logging.getLogger("surehold.recorder")

OnDivergence = Literal["stop", "live"]
InDoubt = Literal["retry", "ask"]
_READS = ("GET", "HEAD", "OPTIONS")
_GRACE = 0.4
"""Seconds without another claim after which a request that fits nothing is a divergence."""
_PATIENCE = 60.0
"""The same for a program with several calls at once: the process may have died within this request,
while another task, which is at work now, had made the calls that are left."""
_UNANSWERED = 10.0
"""The same, offline, for a request that got no answer when it was recorded: the program may have
cancelled it when another one was answered, and may do so again."""
_SILENCE = 2.0
"""Seconds of it after which people are told."""
_HOLD = 2.0
"""Seconds that an answer waits for those before it."""


class Shelf(Protocol):
    """A place that keeps recorded calls."""

    def calls(self) -> Iterable[RecordedCall]:
        """The recorded calls, in the order of their numbers."""

    def append(self, call: RecordedCall, saved: dict[str, Any]) -> None:
        """Keep *call*, durably. *saved* says what replays saved so far."""


class Intents(Protocol):
    """Keeps what is about to be asked, for requests that must not be repeated unasked."""

    def intend(self, asked: Asked, id: str, key: str, number: int) -> None:
        """Keep durably that the request will be sent."""

    def refused(self, id: str) -> None:
        """The server refused the request: it may be sent again."""


class MatchRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which a recording answers."""

    offline: bool = False
    """No request goes to a server."""
    on_divergence: OnDivergence = "stop"
    in_doubt: InDoubt | None = None
    """What to do about a request that may have happened; None for what the run began with."""
    loose: bool = False
    """Overlook times, ids, addresses and temporary names if nothing fits exactly."""
    until: int | None = None
    """Replay calls before this number only; from there on, all are live."""
    change: Callable[[Asked], Asked] | None = None
    """Changes what is sent live."""
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if self.on_divergence not in ("stop", "live"):
            raise UsageError(
                f"on_divergence is {self.on_divergence!r}", hint="give 'stop' or 'live'"
            )
        if self.in_doubt not in (None, "retry", "ask"):
            raise UsageError(f"in_doubt is {self.in_doubt!r}", hint="give 'retry' or 'ask'")


class _Live(msgspec.Struct):
    asked: Asked
    key: str
    slot: int
    intended: bool = False
    """Its intent was kept."""


class _Given(msgspec.Struct):
    call: RecordedCall
    since: float


class Recording(Tape):
    """Gives requests their recorded answers, and keeps the answers of new ones.

    Requests are the same if their canonical forms are; the second of two equal ones gets the
    second recorded answer.
    """

    def __init__(
        self,
        shelf: Shelf,
        rules: MatchRules | None = None,
        *,
        selection: Selection | None = None,
        where: str = "replay",
        intents: Intents | None = None,
        check: Callable[[], object] | None = None,
    ) -> None:
        """Requests that may change something are kept by *intents* before they are sent.

        *check* raises if no request may begin any more.
        """
        self.selection = selection or Selection()
        self.rules = rules or MatchRules()
        self.diverged = ""
        """The explanation of the first divergence."""
        self.replayed = 0
        self.live = 0
        self.loosely = 0
        """Replayed calls that fit only loosely."""
        self.saved = Usage.none()
        """What replayed calls did not cost again."""
        self.live_from: int | None = None
        """The number of the first live call of this start."""
        self.keeps_state = ""
        """The store of its own that the program seems to resume from."""
        self.on_live: Callable[[], None] | None = None
        """Called once, when the first live call begins."""
        self.on_wait: Callable[[str], object] | None = None
        """Called once with what a request waits for."""
        self._tell_live: Callable[[], None] | None = None
        self._shelf = shelf
        self._intents = intents
        self._check = check or (lambda: None)
        self._where = where
        self._lock = threading.Lock()
        self._kept = threading.Condition(self._lock)
        self._keeping = 0
        self._closed = False
        until = self.rules.until
        kept = [call for call in shelf.calls() if until is None or call.number < until]
        self._calls = {call.id: call for call in kept}
        self.recorded = len(self._calls)
        self._left = dict(self._calls)
        """Recorded calls that no request has claimed in this start."""
        self._cancelled: set[str] = set()
        """Recorded calls whose request was cancelled before their turn came."""
        self._undelivered = sorted(call.number for call in self._calls.values())
        self._next = 0
        self._gone: set[int] = set()
        self._ordered = True
        self._number = max(self._undelivered, default=0)
        self._slots: dict[str, set[int]] = {}
        self._known = Counter(id for call in kept for id in call.begun if id not in self._calls)
        self._grace = _PATIENCE if any(call.begun for call in kept) else _GRACE
        self._begun: list[str] = []
        self._waiting: dict[str, float] = {}
        self._moved = time.monotonic()
        self._ids = 0
        self._lives: dict[int, _Live] = {}
        self._given: dict[int, _Given] = {}

    # The tape

    def claim(self, asked: Asked) -> TapeClaim:
        self._check()
        claim = self._claim(asked)
        tell, self._tell_live = self._tell_live, None
        if tell is not None:
            tell()
        if claim.kind == "wait":
            self._say_wait(asked)
        live = self._lives.get(claim.id) if claim.kind == "live" else None
        if live is not None and self._intents is not None and self._is_unsafe(asked):
            live.intended = True
            self._intents.intend(
                live.asked, position(live.key, live.slot), live.key, self._number + 1
            )
        return claim

    def _say_wait(self, asked: Asked) -> None:
        since = self._waiting.get(asked.token)
        if since is None or time.monotonic() - max(since, self._moved) < _SILENCE:
            return
        say, self.on_wait = self.on_wait, None
        if say is not None:
            say(
                f"a new request waits up to {self._grace:.0f} s for the {len(self._left)} recorded"
                " calls that other tasks of the program may still make"
            )

    def expect(self, ids: Iterable[str]) -> None:
        """Expect requests that were in progress when the process before died."""
        self._known.update(ids)

    def in_progress(self) -> list[str]:
        """The ids of live requests that have no answer yet."""
        with self._lock:
            lives = (position(live.key, live.slot) for live in self._lives.values())
            return [id for id in lives if id not in self._calls]

    def _is_unsafe(self, asked: Asked) -> bool:
        """True for a request, other than a model's, that may change something."""
        return asked.method.upper() not in _READS and self.selection.is_named(asked.url)

    def _claim(self, asked: Asked) -> TapeClaim:
        key = key_of(asked)
        with self._lock:
            if self.diverged and self.stops:
                return TapeClaim("diverged", text=self.diverged)
            slot = self._free_slot(key)
            call = self._left.get(position(key, slot))
            sent, body = asked, None
            if call is None and self.rules.change is not None:
                sent = self.rules.change(asked)
                if sent.body != asked.body:
                    body, key = sent.body, key_of(sent)
                    slot = self._free_slot(key)
                    call = self._left.get(position(key, slot))
            call = call or self._loosely(asked)
            if call is not None:
                return self._give(call, asked)
            return self._new(sent, key, slot, body)

    def _free_slot(self, key: str) -> int:
        taken, slot = self._slots.setdefault(key, set()), 0
        while slot in taken:
            slot += 1
        return slot

    def _loosely(self, asked: Asked) -> RecordedCall | None:
        if not self.rules.loose or not self._left:
            return None
        wanted = masked(asked)
        fitting = (call for call in self._left.values() if call.loose == wanted)
        call = min(fitting, key=lambda call: call.number, default=None)
        if call is not None:
            self.loosely += 1
            logger.info("%s: call %d was matched loosely", self._where, call.number)
        return call

    def _give(self, call: RecordedCall, asked: Asked) -> TapeClaim:
        self._slots.setdefault(call.key, set()).add(call.slot)
        del self._left[call.id]
        self._waiting.pop(asked.token, None)
        self._moved = time.monotonic()
        self._ids += 1
        self._given[self._ids] = _Given(call, self._moved)
        self.replayed += 1
        self.saved += _worth(call)
        hold = self._ordered and self._is_early(call)
        return TapeClaim("replay", self._ids, call.answer, hold)

    def _new(self, asked: Asked, key: str, slot: int, body: bytes | None) -> TapeClaim:
        id = position(key, slot)
        known = id in self._known
        expected = not self._left or known or self.rules.on_divergence == "live"
        if self.rules.offline or not expected:
            now = time.monotonic()
            since = self._waiting.setdefault(asked.token, now)
            # Another task may be about to claim what is left; then this one is a new call.
            patience = self._grace
            if self.rules.offline:
                patience = _UNANSWERED if known else 0.0
            if now - max(since, self._moved) < patience:
                return TapeClaim("wait")
            if self.stops:
                self.diverged = self._explained(asked, unanswered=known)
                return TapeClaim("diverged", text=self.diverged)
        if self._left and not known and not self.diverged:
            self.diverged = self._explained(asked)
            self._ordered = False
        self._waiting.pop(asked.token, None)
        self._slots[key].add(slot)
        self._begun.append(id)
        self._ids += 1
        self._lives[self._ids] = _Live(asked, key, slot)
        if self.live_from is None:
            self.live_from = self._number + 1
            self._tell_live = self.on_live
        return TapeClaim("live", self._ids, body=body)

    def _explained(self, asked: Asked, unanswered: bool = False) -> str:
        request, model = facts_of(asked)
        left = sorted(self._left.values(), key=lambda call: call.number)
        return explain(
            request,
            model,
            left,
            where=self._where,
            replayed=self.replayed,
            offline=self.rules.offline,
            unanswered=unanswered,
            keeps_state=self.keeps_state or own_state(),
        )

    def ready(self, id: int) -> bool:
        with self._lock:
            given = self._given.get(id)
            if given is None or not self._ordered:
                return True
            if time.monotonic() - max(given.since, self._moved) > _HOLD:
                # Those before it come late, or not at all.
                self._gone |= {n for n in self._undelivered[self._next :] if n < given.call.number}
            return not self._is_early(given.call)

    def _is_early(self, call: RecordedCall) -> bool:
        """True while answers that came before that of *call* are to be given."""
        numbers = self._undelivered
        while self._next < len(numbers) and numbers[self._next] in self._gone:
            self._next += 1
        return self._next < len(numbers) and numbers[self._next] < call.number

    def delivered(self, id: int) -> None:
        with self._lock:
            given = self._given.pop(id, None)
            if given is not None:
                self._gone.add(given.call.number)
                self._moved = time.monotonic()

    def commit(self, id: int, answer: HttpAnswer) -> None:
        with self._lock:
            if self._closed:
                return
            self._keeping += 1
        try:
            self._commit(id, answer)
        finally:
            with self._lock:
                self._keeping -= 1
                self._kept.notify_all()

    def close(self) -> None:
        """Keep no further answers; those that are being kept are waited for.

        A program that is started again asks anew for what is in flight, so an answer to the
        process before must not come between.
        """
        with self._lock:
            self._closed = True
            self._kept.wait_for(lambda: not self._keeping)

    def _commit(self, id: int, answer: HttpAnswer) -> None:
        with self._lock:
            live = self._lives[id]
            own = position(live.key, live.slot)
            known = self._calls.get(own)  # a stream that went on after its last event
            number = known.number if known is not None else self._number + 1
            self._number = max(self._number, number)
            begun = tuple(one for one in self._begun if one != own)
            self._begun = []
            self.live += known is None
            told = self._told()
        request, model = facts_of(live.asked)
        host = str(request["url"]).partition("/")[0]
        model, usage = read_usage(host, model, answer, self.rules.prices)
        kept = answer._replace(headers=answer.kept_headers())
        call = RecordedCall(
            number=number,
            key=live.key,
            slot=live.slot,
            loose=masked(live.asked),
            request=request,
            answer=kept,
            model=model,
            usage=usage,
            begun=begun,
        )
        self._shelf.append(call, told)
        with self._lock:
            self._calls[own] = call

    def release(self, id: int, refused: bool = False) -> None:
        with self._lock:
            given = self._given.pop(id, None)
            if given is not None:
                self._left[given.call.id] = given.call
                self._cancelled.add(given.call.id)
                self._gone.add(given.call.number)
                self._slots[given.call.key].discard(given.call.slot)
                self.replayed -= 1
                self.saved -= _worth(given.call)
            live = self._lives.pop(id, None)
            if live is not None and position(live.key, live.slot) not in self._calls:
                self._slots[live.key].discard(live.slot)
        if live is not None and live.intended and refused and self._intents is not None:
            self._intents.refused(position(live.key, live.slot))

    # What is told about it

    def _told(self) -> dict[str, Any]:
        return {
            "calls": self.replayed,
            "dollars": self.saved.cost_usd or 0.0,
            "seconds": round(self.saved.seconds, 3),
        }

    def told(self) -> dict[str, Any]:
        """Calls, dollars and seconds that this start did not pay again."""
        with self._lock:
            return self._told()

    @property
    def stops(self) -> bool:
        """True if a divergence ends the program's calls."""
        return self.rules.offline or self.rules.on_divergence == "stop"

    @property
    def count(self) -> int:
        """The number of recorded calls, those of this start included."""
        with self._lock:
            return len(self._calls)

    def left(self) -> list[RecordedCall]:
        """Recorded calls without a request in this start."""
        with self._lock:
            left = (call for call in self._left.values() if call.id not in self._cancelled)
            return sorted(left, key=lambda call: call.number)


def _worth(call: RecordedCall) -> Usage:
    """The tokens and dollars that a replay of the call saves."""
    used = call.usage
    return Usage(used.input_tokens, used.output_tokens, used.cost_usd, call.answer.seconds)
