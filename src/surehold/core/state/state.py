"""The state of a run: frozen values that know their run, step, node and time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Protocol, Self
from uuid import uuid4

import msgspec

from surehold.core.cards import card
from surehold.core.records import check_run_id
from surehold.core.state.events import Event, Observer, deliver
from surehold.core.state.position import Lineage, Place, Secrets, read_metadata, read_place
from surehold.core.values import (
    LAZY_BYTES,
    FrozenList,
    Lazy,
    Nature,
    at_path,
    encode,
    give_out,
    key_text,
    take_in,
    weigh,
)
from surehold.errors import EncodeError, UsageError

_KEEP: Any = object()


class Saver(Protocol):
    """The manager that `State.checkpoint` saves with."""

    def save_checkpoint(self, state: State) -> str:
        """Save *state* and return the checkpoint's id."""

    def load_checkpoint(self, checkpoint_id: str) -> Any:
        """Load the state of a checkpoint."""


_find_saver: list[Callable[[Any], Saver]] = []


def register_saver(find: Callable[[Any], Saver]) -> None:
    """Set the rule that makes a saver of what `State.checkpoint` is given."""
    _find_saver[:] = [find]


def find_saver(target: Any) -> Saver:
    """The saver for a manager, a storage, a registered name or an address."""
    if hasattr(target, "save_checkpoint"):
        return target  # type: ignore[no-any-return]
    if _find_saver:
        return _find_saver[0](target)
    raise UsageError("there is no manager to save through", hint="import surehold, or pass one")


def _told(observer: Observer) -> Callable[[str, State, dict[str, Any]], None]:
    """The function that tells *observer* of the states that are made."""
    if not callable(getattr(observer, "on_event", None)):
        raise UsageError(f"observer is {observer!r}", hint="give an object with on_event(event)")
    failed: set[int] = set()

    def tell(kind: str, state: State, facts: dict[str, Any]) -> None:
        data = {"run_id": state.run_id, "node": state.node, **facts}
        now = datetime.now(UTC)
        event = Event(type=kind, source=state.name, timestamp=now, data=data)
        deliver(event, (observer,), failed, _warn_of_failure)

    return tell


def _warn_of_failure(observer: Observer, error: Exception) -> None:
    warnings.warn(f"{observer!r} failed: {error!r}", RuntimeWarning, stacklevel=6)


def _shown(path: str) -> Any:
    """A property of a state that reads the attribute at *path*."""
    return property(attrgetter(path))


class _Parts:
    """A state while it is made, when its parts can still be set."""

    __slots__ = ("_natures", "_secrets", "_timestamp", "_values", "lineage", "place")


class State(_Parts):
    """The values a run carries, deeply frozen: every change makes a new state.

    >>> state = State.new({"messages": []}, run_id="nightly")
    >>> state = state.append("messages", {"role": "user", "content": "hi"}).set("round", 1)
    >>> state = state.at(step=1, node="ask")
    >>> state["messages"][0]["content"], state.step, state.run_id
    ('hi', 1, 'nightly')
    >>> state["messages"].append("x")
    Traceback (most recent call last):
    ...
    surehold.errors.UsageError: a state is frozen and cannot be changed in place (use \
state.append("key", item), or list(value) for a copy you may change)
    """

    __slots__ = ()

    _values: dict[str, Any]
    _natures: dict[str, Nature]
    place: Place
    """Run, scope, step, node, kind, status, tags and metadata as one value."""
    _timestamp: datetime
    _secrets: Secrets
    lineage: Lineage
    """Shared by all states made from one another."""

    def __init__(self, *values: object, **options: object) -> None:
        raise UsageError("a State is not made by calling it", hint="use State.new({...})")

    @classmethod
    def new(
        cls,
        values: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        name: str = "",
        secrets: Mapping[str, Any] | None = None,
        observer: Observer | None = None,
    ) -> Self:
        """A state at step 0 of *run_id* (by default a new run).

        *secrets* travel with the state and are never saved, logged or shown. The *observer* is
        told of this state and of those made from it, by ``state.create``, ``set``, ``merge`` and
        ``clone``; it is not saved either.
        """
        if name:
            check_run_id(name, "name")
        place = Place(run_id=str(uuid4()) if run_id is None else check_run_id(run_id), name=name)
        made = cls._make({}, {}, place, datetime.now(UTC), Secrets(secrets or {}), Lineage())
        made = made.merge(values) if values else made
        if observer is not None:
            made.lineage.observer = _told(observer)
            made._tell("state.create", keys=made.keys())
        return made

    @classmethod
    def _make(
        cls,
        values: dict[str, Any],
        natures: dict[str, Nature],
        place: Place,
        timestamp: datetime,
        secrets: Secrets,
        lineage: Lineage,
    ) -> Self:
        made: Any = _Parts()
        made._values = values
        made._natures = natures
        made.place = place
        made._timestamp = timestamp
        made._secrets = secrets
        made.lineage = lineage
        # Plain assignments and one change of class: a fifth of the time of `object.__setattr__`.
        try:
            made.__class__ = cls
        except TypeError:  # a subclass that has room for more
            return cls._copied(made)
        return made  # type: ignore[no-any-return]

    @classmethod
    def _copied(cls, parts: _Parts) -> Self:
        made = object.__new__(cls)
        for name in _Parts.__slots__:
            object.__setattr__(made, name, getattr(parts, name))
        return made

    @classmethod
    def restore(
        cls,
        texts: Mapping[str, bytes],
        place: Place,
        timestamp: datetime,
        checkpoint_id: str | None,
    ) -> Self:
        """The state whose values have these texts; long ones are decoded when looked at."""
        values: dict[str, Any] = {}
        natures: dict[str, Nature] = {}
        for key, text in texts.items():
            value: Any = Lazy(text)
            if len(text) <= LAZY_BYTES:
                value = value.get()
                natures[key] = weigh(value)
            values[key] = value
        return cls._make(values, natures, place, timestamp, Secrets({}), Lineage(checkpoint_id))

    def _with(self, values: dict[str, Any], natures: dict[str, Nature]) -> Self:
        return self._make(values, natures, self.place, self._timestamp, self._secrets, self.lineage)

    def _tell(self, kind: str, **facts: Any) -> None:
        if self.lineage.observer is not None:
            self.lineage.observer(kind, self, facts)

    def placed(self, place: Place) -> Self:
        """The state at another place."""
        return self._make(
            self._values, self._natures, place, datetime.now(UTC), self._secrets, self.lineage
        )

    def for_saving(self) -> tuple[dict[str, Any], dict[str, Nature]]:
        """The values to save and how each is compared with what was saved before."""
        values, natures = self._values, self._natures
        if len(natures) < len(values):
            values, natures = dict(values), dict(natures)
            for key, value in values.items():
                if key in natures:
                    continue
                natures[key] = Nature.TAGGED
                if value.resolved and weigh(value.get()) is Nature.LIVE:
                    values[key] = value.get()
                    natures[key] = Nature.LIVE
        return values, natures

    # Reading

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return value.get() if type(value) is Lazy else value

    def get(self, key: str, default: Any = None) -> Any:
        """The value of *key*, or *default* if there is none."""
        return self[key] if key in self._values else default

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def keys(self) -> list[str]:
        """The keys, in the order in which they were first set."""
        return list(self._values)

    def items(self) -> list[tuple[str, Any]]:
        """Keys and their values."""
        return [(key, self[key]) for key in self._values]

    def to_dict(self) -> dict[str, Any]:
        """The values as ordinary dicts and lists that may be changed."""
        return {key: give_out(self[key]) for key in self._values}

    # Changing

    def set(self, key: str, value: Any) -> Self:
        """The state with *key* set to a copy of *value*."""
        return self.merge({key: value})

    def merge(self, values: Mapping[str, Any] | State) -> Self:
        """The state with all these keys set; its own run and place are kept."""
        made, natures = dict(self._values), dict(self._natures)
        for key in values:
            value = values[key]
            key_text(key)
            made[key], natures[key] = _taken_in(key, value)
        changed = self._with(made, natures)
        if self.lineage.observer is not None:
            keys = list(values)
            if len(keys) == 1:
                changed._tell("state.set", key=keys[0])
            else:
                changed._tell("state.merge", keys=keys)
        return changed

    def with_values_of(self, other: State) -> Self:
        """This state, with its own run and place, and the values of *other*."""
        return self._with(other._values, other._natures)

    def append(self, key: str, *items: Any) -> Self:
        """The state with *items* added to the list at *key*, which is made if missing."""
        old: Any = self._values.get(key)
        if type(old) is Lazy:
            old = old.get()
        if type(old) is not FrozenList:
            if key not in self._values:
                return self.set(key, list(items))
            raise UsageError(
                f"{key!r} is a {type(old).__name__}, not a list", hint="use state.set(...)"
            )
        added, _ = _taken_in(key, list(items))
        grown = old.grown(added)
        return self._with({**self._values, key: grown}, {**self._natures, key: grown.nature})

    def without(self, *keys: str) -> Self:
        """The state less these keys."""
        return self._with(
            {key: value for key, value in self._values.items() if key not in keys},
            {key: nature for key, nature in self._natures.items() if key not in keys},
        )

    def clone(self) -> Self:
        """The same state again, of the same run and place."""
        made = self._with(self._values, self._natures)
        if self.lineage.observer is not None:
            made._tell("state.clone", keys=made.keys())
        return made

    def at(
        self,
        *,
        step: int = _KEEP,
        node: str | None = _KEEP,
        kind: str = _KEEP,
        status: str = _KEEP,
        tags: Iterable[str] = _KEEP,
        metadata: Mapping[str, Any] = _KEEP,
        scope: str = _KEEP,
    ) -> Self:
        """The state at another place of its run. What is not given stays."""
        places: dict[str, Any] = {"step": step, "node": node, "kind": kind, "status": status}
        places |= {"tags": tags, "metadata": metadata, "scope": scope}
        given = {name: value for name, value in places.items() if value is not _KEEP}
        return self.placed(msgspec.structs.replace(self.place, **read_place(given)))

    def set_checkpoint_node(self, node: str) -> Self:
        """The state as it is after *node*."""
        return self.at(node=node)

    def with_secrets(self, secrets: Mapping[str, Any]) -> Self:
        """The state with these secrets, which are never saved, logged or shown."""
        made = self.clone()
        object.__setattr__(made, "_secrets", Secrets({**self._secrets, **secrets}))
        return made

    def checkpoint(self, target: Any = None) -> str:
        """Save to a manager, a storage, a store, a name or an address; return the id."""
        return find_saver(target).save_checkpoint(self)

    # Knowing

    run_id: str = _shown("place.run_id")
    """The run it belongs to."""
    name: str = _shown("place.name")
    """The name that its run shares with others of its kind; may be empty."""
    scope: str = _shown("place.scope")
    """The journal within the run's journal: empty for the run itself."""
    step: int = _shown("place.step")
    """The step of the run."""
    node: str | None = _shown("place.node")
    """The node or place in the code that was reached."""
    checkpoint_node = node
    kind: str = _shown("place.kind")
    """The kind of the checkpoint."""
    status: str = _shown("place.status")
    """The status of the run."""
    tags: tuple[str, ...] = _shown("place.tags")
    """Labels to find it by."""
    metadata: Mapping[str, Any] = _shown("place.metadata")
    """Facts about the checkpoint, stored in the clear and searchable."""
    timestamp: datetime = _shown("_timestamp")
    """The time it was saved or, if it was not yet, made."""
    checkpoint_id: str | None = _shown("lineage.checkpoint_id")
    """The checkpoint that this state, or the one it was made from, was last saved as."""
    secrets: Mapping[str, Any] = _shown("_secrets")
    """Values that travel with the state and are never saved."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise UsageError(f"a state is frozen: {name} cannot be assigned", hint="use set() or at()")

    def __delattr__(self, name: str) -> None:
        raise UsageError(f"a state is frozen: {name} cannot be deleted")

    def __setitem__(self, key: str, value: Any) -> None:
        raise UsageError(f"a state is frozen: {key!r} cannot be assigned", hint="use set()")

    def __delitem__(self, key: str) -> None:
        raise UsageError(f"a state is frozen: {key!r} cannot be deleted", hint="use without()")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State):
            return NotImplemented
        return self.place == other.place and dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a state as its texts, without secrets and without class names."""
        texts = {
            k: v.text if type(v) is Lazy else encode(v) for k, v in self.for_saving()[0].items()
        }
        place = msgspec.structs.asdict(self.place)
        return _unpickled, (type(self), texts, place, self._timestamp, self.checkpoint_id)

    def __repr__(self) -> str:
        place = self.place
        where = f" at {place.node}" if place.node else ""
        return f"<State {place.run_id} step {place.step}{where}: {', '.join(self._values)}>"

    def _repr_html_(self) -> str:
        """The values as a card, in a notebook; secrets are left out."""
        place = self.place
        shown = {key: self[key] for key in self._values if key not in self._secrets}
        return card(place.run_id, place.status, [f"step {place.step}", place.node or ""], shown)


def _taken_in(key: str, value: Any) -> tuple[Any, Nature]:
    try:
        return take_in(value)
    except EncodeError as error:
        at_path(error, key)
        raise


def _unpickled(
    cls: type[State],
    texts: Mapping[str, bytes],
    place: Mapping[str, Any],
    timestamp: datetime,
    checkpoint_id: str | None,
) -> State:
    metadata = read_metadata(place["metadata"])
    return cls.restore(texts, Place(**{**place, "metadata": metadata}), timestamp, checkpoint_id)
