"""The tape of this process, and the steps of every transport with one request."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .messages import Asked, Divergence, Headers, HttpAnswer, TapeClaim, ends_stream, keep_open
from .selection import Selection

MARK = f"_surehold_{__name__.partition('.')[0]}"
"""Set on what is patched. Two copies of this room may wrap one another in a process."""

_PAUSE = 0.004
_LONGEST_PAUSE = 0.1
_TAIL = 4096
"""Bytes of a stream that are looked at again for its last event."""


class Tape:
    """A run, in this process or another: gives recorded answers and takes new ones."""

    selection = Selection()

    def claim(self, asked: Asked) -> TapeClaim:
        """The recorded answer to a request, or the right to ask the server."""
        raise NotImplementedError

    def ready(self, id: int) -> bool:
        """True if a held answer may be given now."""
        raise NotImplementedError

    def commit(self, id: int, answer: HttpAnswer) -> None:
        """Keep the answer of a live request; it is durable when this returns."""
        raise NotImplementedError

    def release(self, id: int, refused: bool = False) -> None:
        """A live request has no answer to keep; with *refused*, because it is an error.

        A request whose recorded answer was held is given up: the next equal one has that answer.
        """
        raise NotImplementedError

    def delivered(self, id: int) -> None:
        """A recorded answer was handed over to the last byte, or is not read further."""
        raise NotImplementedError


_TAPES: list[Tape] = []
_OWN: ContextVar[Tape | None] = ContextVar("surehold_tape", default=None)
"""The tape of this task. A thread that was started without a context has the newest one."""
_TOKENS = itertools.count(1)
_INSIDE: ContextVar[bool] = ContextVar("surehold_inside", default=False)
"""True while an outer transport has the request: an inner one lets it pass."""


@contextmanager
def playing(tape: Tape) -> Iterator[None]:
    """Have the requests of this process go through *tape*."""
    before = _OWN.get()
    _TAPES.append(tape)
    _OWN.set(tape)
    try:
        yield
    finally:
        _TAPES.remove(tape)
        if _OWN.get() is tape:
            _OWN.set(before)


def play(tape: Tape) -> None:
    """Have the requests of this process go through *tape* until it ends."""
    _TAPES[:] = [tape]


@contextmanager
def passing() -> Iterator[None]:
    """Let requests pass that the transport makes for one that is recorded already."""
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)


def wanted(method: str, url: str, body: Callable[[], bytes]) -> Tape | None:
    """The tape that records such a request, if there is one."""
    tape = candidate(method, url)
    return tape if tape is not None and tape.selection.wants(method, url, body) else None


def candidate(method: str, url: str) -> Tape | None:
    """The tape that records such a request if its body is a model's."""
    if not _TAPES or _INSIDE.get():
        return None
    own = _OWN.get()
    tape = own if own is not None and own in _TAPES else _TAPES[-1]
    return tape if tape.selection.may_want(method, url) else None


class Exchange:
    """One request and its answer."""

    def __init__(self, tape: Tape, claim: TapeClaim) -> None:
        self._tape = tape
        self.id = claim.id
        self.answer = claim.answer
        """The recorded answer; None if the server is to be asked."""
        self.body = claim.body
        """What to send instead of the request's own body; None for no change."""
        self._hold = claim.hold
        self._began = time.monotonic()
        self._over = False

    # Live

    def record(self, status: int, reason: str, headers: Headers) -> Recorder | None:
        """A recorder of the body to come; None if such an answer is not kept."""
        if not 200 <= status < 300 or status == 206:
            self.release(refused=True)
            return None
        return Recorder(self, status, reason, headers)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask the server inside; a failure releases the request."""
        try:
            with passing():
                yield
        except BaseException:
            self.release()
            raise

    def release(self, refused: bool = False) -> None:
        """The request has no answer to keep."""
        if not self._over:
            self._over = True
            self._tape.release(self.id, refused)

    def commit(self, answer: HttpAnswer) -> None:
        """Keep the answer."""
        self._over = True
        self._tape.commit(self.id, answer._replace(seconds=time.monotonic() - self._began))

    # Recorded

    def is_held(self) -> bool:
        """True while answers that came before this one are still to be given."""
        if self._hold and self._tape.ready(self.id):
            self._hold = False
        return self._hold

    def hold(self) -> None:
        """Wait until this answer's turn has come."""
        with self._giving_up():
            while self.is_held():
                time.sleep(_PAUSE)

    async def hold_async(self) -> None:
        """Wait until this answer's turn has come."""
        with self._giving_up():
            while self.is_held():
                await pause(_PAUSE)

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.release()
            raise

    def delivered(self) -> None:
        """The recorded answer was handed over."""
        if not self._over:
            self._over = True
            self._tape.delivered(self.id)

    def check_end(self) -> None:
        """Raise a `Divergence` if the program reads more of a stream than it did before."""
        if self.answer is not None and not self.answer.complete:
            raise Divergence(
                "the program reads further in a stream than it did when the stream was recorded"
            )


class Recorder:
    """Keeps a copy of a body while the program reads it."""

    def __init__(self, exchange: Exchange, status: int, reason: str, headers: Headers) -> None:
        self._exchange = exchange
        self._head = (status, reason, headers)
        self._streams = keep_open(headers)
        self._tail = b""
        self._kept = -1
        self._failed = False
        self.chunks: list[bytes] = []

    def chunk(self, data: bytes) -> None:
        """A chunk has come; call this before the program gets it."""
        if not data:
            return
        self.chunks.append(data)
        if self._streams:
            if ends_stream(data, self._tail):
                self._keep(True)
            self._tail = data[-_TAIL:] if len(data) >= _TAIL else (self._tail + data)[-_TAIL:]

    def end(self) -> None:
        """The body is whole; call this before the program learns of it."""
        if self._kept != len(self.chunks):
            self._keep(True)

    def close(self) -> None:
        """The program stops reading, maybe before the end."""
        if self._kept < 0 and not self._failed:
            if self.chunks:
                self._keep(False)
            else:
                self.fail()

    def fail(self) -> None:
        """The connection broke, or the request was cancelled."""
        if self._kept < 0:
            self._failed = True
            self._exchange.release()

    def _keep(self, complete: bool) -> None:
        self._kept = len(self.chunks)
        self._exchange.commit(HttpAnswer(*self._head, chunks=[*self.chunks], complete=complete))


def _opening(tape: Tape, asked: Asked) -> Iterator[float]:
    """Claim until the tape replies; yields the seconds to wait before the next try."""
    asked = asked._replace(token=f"{os.getpid()}-{next(_TOKENS)}")
    wait = _PAUSE
    while True:
        claim = tape.claim(asked)
        if claim.kind == "diverged":
            raise Divergence(claim.text)
        if claim.kind != "wait":
            return Exchange(tape, claim)  # type: ignore[return-value]
        yield wait
        wait = min(wait * 1.1, _LONGEST_PAUSE)


def begin(tape: Tape, asked: Asked) -> Exchange:
    """Claim the answer to a request, blocking until its turn has come."""
    steps: Any = _opening(tape, asked)
    while True:
        try:
            time.sleep(next(steps))
        except StopIteration as ended:
            exchange: Exchange = ended.value
            if exchange.answer is not None:
                exchange.hold()
            return exchange


async def begin_async(tape: Tape, asked: Asked) -> Exchange:
    """Claim the answer to a request; other tasks go on while it waits."""
    steps: Any = _opening(tape, asked)
    while True:
        try:
            await pause(next(steps))
        except StopIteration as ended:
            exchange: Exchange = ended.value
            if exchange.answer is not None:
                await exchange.hold_async()
            return exchange


async def pause(seconds: float) -> None:
    """Sleep in the async library that runs this task."""
    trio = sys.modules.get("trio")
    if trio is not None:
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            pass
        else:
            await trio.sleep(seconds)
            return
    import asyncio

    await asyncio.sleep(seconds)


_STORES = {
    "langgraph.checkpoint.sqlite": "LangGraph's SqliteSaver: surehold.integrations.langgraph",
    "langgraph.checkpoint.sqlite.aio": "LangGraph's SqliteSaver: surehold.integrations.langgraph",
    "langgraph.checkpoint.postgres": "LangGraph's PostgresSaver: surehold.integrations.langgraph",
    "langgraph.checkpoint.postgres.aio": "LangGraph's PostgresSaver:"
    " surehold.integrations.langgraph",
    "agents.memory.session": "a session of the OpenAI Agents SDK:"
    " surehold.integrations.openai_agents",
    "strands.session.file_session_manager": "a session of Strands: surehold.integrations.strands",
    "agent_framework": "a thread of Microsoft Agent Framework:"
    " surehold.integrations.agent_framework",
    "pydantic_ai": "a stored history of Pydantic AI: surehold.integrations.pydantic_ai",
}
"""Modules of what a program may keep its own state in, and what takes their place."""


def own_state() -> str:
    """The store that this program may keep its state in, and its drop-in; maybe empty."""
    return next((told for name, told in _STORES.items() if name in sys.modules), "")
