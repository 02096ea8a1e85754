"""From records back to states, with every digest and link on the way checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from holdfast.checkpoint.crypto import Sealer, read_body
from holdfast.checkpoint.journal.draft import Saveable, place_of, rebuild
from holdfast.core.records import Header, Record
from holdfast.core.state import State, migrations
from holdfast.core.values import Rebuilt, decode, encode
from holdfast.errors import CorruptError, NotFoundError, StorageUnavailableError, UsageError
from holdfast.storage.base import RecordQuery, RunInfo, RunQuery, Storage

__all__ = ["Loaded", "Reader"]

T = TypeVar("T")

_LOOKS = 100
"""How often a run is looked at again because someone saved to it meanwhile."""
_NEAR = 256
"""How far behind the newest record a checkpoint may be for all between to be read and checked."""


_LIGHTEST = 512
"""What a delta weighs at least: reading a record costs something, however little is in it."""


def delta_weight(text: bytes) -> int:
    """What a delta adds to the cost of loading the states after it."""
    return max(len(text), _LIGHTEST)


class Loaded(msgspec.Struct, frozen=True):
    """A state as text, and what its record and its chain of bases weigh."""

    header: Header
    form: str
    texts: dict[str, bytes]
    key_weight: int
    chain_weight: int
    extras: tuple[bytes, ...] = ()
    """What a runtime kept beside the state, from the keyframe to this record."""

    @property
    def extra(self) -> dict[str, Any]:
        """What a runtime kept beside the state, as it was then.

        Of what the records say, a list is added to and anything else replaced.
        """
        whole: dict[str, Any] = {}
        for text in self.extras:
            for key, value in (msgspec.json.decode(text) if text else {}).items():
                old = whole.get(key)
                whole[key] = old + value if isinstance(old, list) else value
        return whole

    def state(self) -> Saveable:
        """The object that was saved, as it was."""
        return rebuild(self.form, self.header, self.texts)

    def graph_state(self) -> State:
        """The values as a graph's state, whatever class they are given out as."""
        return State.restore(
            self.texts, place_of(self.header), self.header.saved_at, self.header.id
        )

    @property
    def is_current(self) -> bool:
        """Whether its values have the version that this code knows as the newest."""
        return self.header.schema == migrations.latest(self.header.name)

    def upgraded(self) -> Saveable:
        """The object that was saved, in the newest version that this code knows.

        A version that is newer than that, or from which nothing leads there, is a `SchemaError`.
        What is stored stays as it is.
        """
        if self.is_current:
            return self.state()
        old = {key: decode(text) for key, text in self.texts.items()}
        new, _ = migrations.upgrade(self.header.name, self.header.schema, old)
        return rebuild(self.form, self.header, {key: encode(value) for key, value in new.items()})

    @property
    def size(self) -> int:
        """Bytes of the state as JSON text."""
        return self.header.size


class Reader:
    """Finds checkpoints in a storage and rebuilds their states."""

    def __init__(self, storage: Storage, sealer: Sealer) -> None:
        self.storage = storage
        self.sealer = sealer
        self.recover: Callable[[CorruptError], bool] | None = None
        """Told of a damaged run, says whether it made it readable again; None to let it be."""

    def _whole(self, look: Callable[[], T]) -> T:
        """What *look* finds; where it meets a damaged run, after that was made readable."""
        seen: set[str | None] = set()
        while True:
            try:
                return look()
            except CorruptError as error:
                run_id = error.facts.get("run_id")
                if self.recover is None or run_id in seen or not self.recover(error):
                    raise
                seen.add(run_id)

    def run(self, run_id: str) -> RunInfo | None:
        """What is known of a run, or None if there is no such run."""
        query = RunQuery(run_id=run_id, limit=1)
        return self._whole(lambda: next(iter(self.storage.runs(query)), None))

    def runs_of(self, name_or_run_id: str) -> Iterator[RunInfo]:
        """The run with exactly that id or, if there is none, those of that name, newest first."""
        run = self.run(name_or_run_id)
        if run is not None:
            yield run
        else:
            yield from self.storage.runs(RunQuery(name=name_or_run_id))

    def to_resume(self, name_or_run_id: str) -> RunInfo | None:
        """The run to go on with: that id, or the newest of that name that is not completed.

        Runs of the name that retention has left no checkpoint are passed over.
        """
        query = RunQuery(name=name_or_run_id, not_status="completed")
        return self.run(name_or_run_id) or self._whole(
            lambda: next((one for one in self.storage.runs(query) if one.checkpoints), None)
        )

    def newest(self, run: RunInfo, scope: str = "") -> Header | None:
        """The newest visible checkpoint of a run's scope, checked against the run's head."""
        return self.standing(run, scope)[1]

    def standing(self, run: RunInfo, scope: str = "") -> tuple[RunInfo, Header | None]:
        """The same, and the head that it was checked against: *run*, or a later one."""
        if self.recover is None:
            return self._standing(run, scope)
        return self._whole(lambda: self._loadable(run.run_id, scope) or (run, None))

    def _loadable(self, run_id: str, scope: str) -> tuple[RunInfo, Header | None] | None:
        """The same, all that the checkpoint is built on being read as well."""
        while (now := self.run(run_id)) is not None:
            run, newest = self._standing(now, scope)
            try:
                if newest is not None:
                    self._chain(newest)
                return run, newest
            except CorruptError:
                if newest in self.storage.find(newest.id if newest else ""):
                    raise
                # Someone deleted it meanwhile, and what it was built on went as well.
        return None

    def _standing(self, run: RunInfo, scope: str) -> tuple[RunInfo, Header | None]:
        for _ in range(_LOOKS):
            try:
                return run, self._newest(run, scope)
            except CorruptError:
                now = self.run(run.run_id)
                if now is not None and now.digest == run.digest:
                    raise
                if now is None:
                    return run, None
                run = now  # someone saved while it was looked at
        raise StorageUnavailableError(
            f"run {run.run_id!r} changed {_LOOKS} times while it was read", run_id=run.run_id
        )

    def _newest(self, run: RunInfo, scope: str) -> Header | None:
        query = RecordQuery(run_id=run.run_id, scope=scope, limit=1)
        found = next(iter(self.storage.headers(query)), None)
        first = found.seq if found and run.seq - found.seq <= _NEAR else run.seq
        last = None
        for last in self.records(run.run_id, first, run.seq):
            header = last.header
            later = found is not None and header.seq > found.seq and header.frame != "note"
            if later and header.scope == scope and header in self.storage.find(header.id):
                raise self._damaged(run.run_id, header.seq, "is missing from its index")
        if last is None or last.header.digest != run.digest:
            raise self._damaged(run.run_id, run.seq, "is not the newest that the run's head names")
        return found

    def records(self, run_id: str, first: int, last: int) -> Iterator[Record]:
        """The records from *first* to *last*, each checked to follow the one before it."""
        before: Header | None = None
        for record in self.storage.read(run_id, first=first, last=last):
            header = record.header
            if header.run_id != run_id:
                raise self._damaged(run_id, header.seq, f"belongs to run {header.run_id!r}")
            if before is not None and before.seq + 1 == header.seq:
                if header.prev != before.digest:
                    raise self._damaged(run_id, header.seq, "does not follow the one before it")
            elif before is not None and header.seq <= before.seq:
                raise self._damaged(run_id, header.seq, "is out of order")
            before = header
            yield record

    def load_visible(self, target: Header) -> Loaded:
        """The state at a checkpoint that was just found; a `NotFoundError` if it is gone again."""
        try:
            return self.load(target)
        except CorruptError:
            if any(found.digest == target.digest for found in self.storage.find(target.id)):
                raise
            # Someone deleted it meanwhile, and what it was built on went as well.
            raise _not_found(target.id) from None

    def load(self, target: Header) -> Loaded:
        """The state at a checkpoint, rebuilt from its keyframe through its chain of bases."""
        return self._rebuild(self._chain(target))

    def _chain(self, target: Header) -> list[Record]:
        """The records that a checkpoint is built from, its keyframe first."""
        first = target.seq if target.frame == "key" else target.key_seq
        if first is None:
            raise self._damaged(target.run_id, target.seq, "is a delta without a keyframe")
        chain = {}
        for record in self.records(target.run_id, first, target.seq):
            header = record.header
            if header.frame != "note" and header.scope == target.scope:
                chain[header.seq] = record
        return self._way(chain, target)

    def _way(self, chain: dict[int, Record], target: Header) -> list[Record]:
        way = []
        seq: int | None = target.seq
        while True:
            record = chain.get(seq) if seq is not None else None
            if record is None:
                raise self._damaged(target.run_id, seq, f"is missing, and {target.seq} needs it")
            way.append(record)
            if record.header.frame == "key":
                break
            seq = record.header.base_seq
        if way[0].header.digest != target.digest:
            raise self._damaged(target.run_id, target.seq, "is not the one that was asked for")
        return way[::-1]

    def _rebuild(self, way: list[Record]) -> Loaded:
        target = way[-1].header
        key = read_body(self.sealer.open(way[0]), way[0].header)
        weight = 0
        try:
            made = Rebuilt(key.state)
            extras = [bytes(key.extra)]
            for record in way[1:]:
                text = self.sealer.open(record)
                weight += delta_weight(text)
                body = read_body(text, record.header)
                made.apply(body.patch)
                extras.append(bytes(body.extra))
            texts = made.texts()
        except (msgspec.MsgspecError, LookupError, ValueError, TypeError) as error:
            raise self._damaged(target.run_id, target.seq, "cannot be rebuilt") from error
        key_weight = len(key.state) + len(key.extra)
        return Loaded(target, key.form, texts, key_weight, weight, tuple(extras))

    def resolve(self, checkpoint_id: str, *, run_id: str | None = None) -> Header:
        """The checkpoint with that id or unique prefix of one."""
        if not checkpoint_id:
            raise UsageError("the checkpoint id is empty", hint="list_checkpoints() shows them")
        found = [
            header
            for header in self.storage.find(checkpoint_id)
            if run_id is None or header.run_id == run_id
        ]
        if not found:
            raise _not_found(checkpoint_id)
        if len(found) > 1:
            names = ", ".join(f"{h.id} (run {h.run_id})" for h in found[:5])
            raise UsageError(
                f"{checkpoint_id!r} is not unique: {names}{', ...' if len(found) > 5 else ''}",
                hint="give more of the id",
                checkpoint_id=checkpoint_id,
                candidates=[header.id for header in found],
            )
        return found[0]

    def _damaged(self, run_id: str, seq: int | None, what: str) -> CorruptError:
        return CorruptError(f"record {seq} of run {run_id!r} {what}", run_id=run_id, seq=seq)


def _not_found(checkpoint_id: str) -> NotFoundError:
    return NotFoundError(
        f"no checkpoint {checkpoint_id!r}",
        hint="list_checkpoints() shows those there are",
        checkpoint_id=checkpoint_id,
    )
