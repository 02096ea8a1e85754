"""The result of a run, one class for every way to execute one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

import msgspec

from surehold.core.cards import card
from surehold.core.records import Effect
from surehold.engine.journal import Note, Reader, read_since
from surehold.engine.runs import Waiting
from surehold.errors import RunError

T = TypeVar("T")


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of recorded calls."""

    calls: int = 0
    """Calls of steps, effects and child workflows; a recorded time or number is none."""
    tokens: int = 0
    dollars: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            dollars=self.dollars + other.dollars,
            seconds=self.seconds + other.seconds,
        )


class ModelSpent(Spent, frozen=True, kw_only=True):
    """The cost of model calls; also read as a mapping: ``usage["calls"]``."""

    input_tokens: int = 0
    output_tokens: int = 0
    unpriced: int = 0
    """Calls of models whose price is unknown; *dollars* does not contain them."""

    @classmethod
    def of(cls, usage: Mapping[str, Any]) -> Self:
        """Read the dict of a `Usage`."""
        given = {name: usage[name] for name in _SHARED if name in usage}
        tokens = given.get("input_tokens", 0) + given.get("output_tokens", 0)
        return cls(tokens=tokens, dollars=usage.get("cost_usd") or 0.0, **given)

    def __getitem__(self, name: str) -> Any:
        name = "dollars" if name == "cost_usd" else name
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)


_SHARED = ("calls", "seconds", "input_tokens", "output_tokens", "unpriced")


def spent_on(effects: Iterable[Effect]) -> Spent:
    """The cost of the completed calls among *effects*."""
    spent = (
        Spent(calls=1, tokens=one.tokens, dollars=one.dollars, seconds=one.seconds)
        for one in effects
        if one.done and one.key
    )
    return sum(spent, Spent())


def spent_before(reader: Reader, run_id: str, without: Iterable[Note] = ()) -> Spent:
    """The cost of the completed calls that the journal of a run holds.

    Those in *without* are left out. The whole journal is read.
    """
    run = reader.run(run_id)
    if run is None:
        return Spent()
    notes = read_since(reader, run_id, 0, run.seq)
    effects = {note.content.id: note.content for note in notes if note.kind == "effect"}
    for note in without:
        effects.pop(note.content.id, None)
    return spent_on(effects.values())


class RunResult(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The outcome of a run, or what it waits for. Failures are raised."""

    run_id: str
    status: str
    """``completed``, ``waiting``, ``interrupted`` if it was asked to stop, or how a limit ended it;
    where a run is only looked at, any status."""
    returned: T | None = None
    """The return value of a completed function, the answer of an agent or a fleet; None before."""
    state: Any = None
    """The state of a graph, an agent or a fleet, as far as it has come."""
    step: int = 0
    """The recorded calls, nodes, cycles or rounds of the whole run."""
    usage: Spent = Spent()
    """The cost of all recorded calls of the run."""
    saved: Spent = Spent()
    """The cost of those that were recorded by an earlier start and not made again."""
    waiting: tuple[Waiting, ...] = ()
    error: str | None = ""
    """The failure of a run that is only looked at."""

    @property
    def completed(self) -> bool:
        """True if the run has ended well."""
        return self.status == "completed"

    @property
    def value(self) -> T:
        """The return value of a completed function, the answer of an agent or a fleet.

        A `RunError` if the run has not come that far; `returned` is None then.
        """
        if self.returned is None and not self.completed:
            waits = ", ".join(one.id for one in self.waiting)
            why = f" for {waits}" if waits else f": {self.error}" if self.error else ""
            command = "pending" if waits else "show"
            raise RunError(
                f"run {self.run_id!r} has no value: it is {self.status}{why}",
                hint=f"look at result.status; surehold {command} {self.run_id}",
                run_id=self.run_id,
                status=self.status,
            )
        return self.returned  # type: ignore[return-value]

    def _repr_html_(self) -> str:
        """The outcome as a card, in a notebook."""
        saved = f"${self.saved.dollars:.3f} not paid again" if self.saved.dollars else ""
        cost = f"${self.usage.dollars:.3f}" if self.usage.dollars else ""
        rows: dict[str, Any] = {} if self.returned is None else {"value": self.returned}
        rows |= {"error": self.error} if self.error else {}
        rows |= {f"waits for {one.id}": one.question for one in self.waiting}
        values = getattr(self.state, "to_dict", None)
        if self.returned is None and values is not None:
            rows |= values()
        return card(self.run_id, self.status, [f"step {self.step}", cost, saved], rows)


class GraphResult(RunResult[None], frozen=True, kw_only=True):
    """The outcome of a graph's run; the keys of its state can be read from it.

    ``result["answer"]`` is ``result.state["answer"]``; so are `get`, `in` and `keys`.
    """

    def __getitem__(self, key: str) -> Any:
        """The value of *key* in the state."""
        return self.state[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of *key* in the state, or *default*."""
        return self.state.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self.state

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def keys(self) -> Iterable[str]:
        """The keys of the state."""
        keys: Iterable[str] = self.state.keys()
        return keys

    def to_dict(self) -> dict[str, Any]:
        """The state as a dict."""
        values: dict[str, Any] = self.state.to_dict()
        return values
