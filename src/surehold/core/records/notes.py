"""Notes of a run's progress: effects, items, questions, answers, timers, messages."""

from __future__ import annotations

from typing import Any

import msgspec


class Effect(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call to the outside world: its intent and, once it has ended, its outcome."""

    id: str
    """The call's position in the run: unique, and the same on every replay."""
    name: str
    key: str
    """The idempotency key that goes with the call; empty if nothing is called: a recorded time,
    number, id or patch."""
    args: str = ""
    """A digest of the arguments."""
    inputs: str = ""
    """The arguments as a person reads them, short and redacted; empty where they are not kept."""
    policy: str = "ask"
    began: str = ""
    done: bool = False
    failures: int = 0
    """Attempts that failed before this one."""
    since: str = ""
    """The begin of the first attempt, if others failed before this one."""
    repeat: bool = False
    """The call did not happen, and one more attempt is permitted."""
    value: msgspec.Raw = msgspec.Raw()
    error: tuple[str, str] | None = None
    """Class name and text of the exception that the call ended with."""
    raised: Any = None
    """The exception itself, as `recorded_error` writes it."""
    seconds: float = 0.0
    tokens: int = 0
    dollars: float = 0.0
    model: str = ""
    """The model that was paid for, if the call names one."""
    output: int = 0
    """How many of the tokens the model wrote."""


class Item(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A completed item of a parallel node."""

    id: str
    args: str
    value: msgspec.Raw


class Question(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A question that a person is asked."""

    id: str
    text: msgspec.Raw
    """The question, as the codec writes it."""
    schema: Any = None
    """The JSON Schema of the answers that fit, if there is one."""
    problem: str = ""
    """The reason that the last answer did not fit."""
    until: float | None = None
    """Seconds since 1970 after which no answer is waited for."""
    expired: bool = False
    """No answer came in time."""
    bound: dict[str, str] = {}
    """Digests of what the answer is bound to, such as the tool, arguments and code of a call."""


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer to a question, or the value of an event."""

    id: str
    value: msgspec.Raw
    bound: dict[str, str] = {}
    """What the question was bound to when it was answered."""
    asked: msgspec.Raw = msgspec.Raw()
    """The text of such a question."""
    taken: bool = False
    """The run has taken a bound answer, and acted on it."""


class Timer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A time that a run waits for, with or without an event that may come first."""

    id: str
    name: str
    """``sleep``, or the event that is awaited."""
    until: float | None = None
    """Seconds since 1970; None if only the event ends the wait."""
    event: bool = False
    mail: bool = False
    """The event is the next message of a topic."""
    expired: bool = False
    """The time has come: the sleep is over, or the event did not come."""


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message to a run, kept until the run takes it."""

    id: str
    topic: str
    value: msgspec.Raw
    seq: int = 0
    """Its place in the journal, which is the order of delivery; known when it is read."""


class Mailbox(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The messages that a run has taken; checkpoints carry it along."""

    id: str
    """The run's id: a fork has a mailbox of its own."""
    taken: dict[str, int]
    """The place in the journal of the last message that was taken, by topic."""


class Published(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The values that a run shows to others; checkpoints carry them along."""

    id: str = "published"
    values: msgspec.Raw
    """All of them, as the codec writes them."""


class Attributes(Published, kw_only=True, omit_defaults=True):
    """The values that a run is found by; they are in the note's header as well."""

    id: str = "attributes"
    found_by: dict[str, Any] = {}
    """The values as the header has them: texts, numbers and truth values."""


class Heartbeat(Published, kw_only=True, omit_defaults=True):
    """The progress that the call of this id has told last."""

    id: str = ""


NOTE_KINDS: dict[str, type[Any]] = {
    "effect": Effect,
    "item": Item,
    "question": Question,
    "answer": Answer,
    "timer": Timer,
    "message": Message,
    "mailbox": Mailbox,
    "published": Published,
    "attributes": Attributes,
    "progress": Heartbeat,
}
"""The types of such notes, by kind."""
