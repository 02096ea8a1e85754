"""Finds runs and checkpoints, and rebuilds states, every digest checked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from surehold.core.records import OPEN_FROM, Door, Header, Record, derived_door
from surehold.core.state import State, migrations
from surehold.core.values import Rebuilt, Written, after_change, decode, encode, remember
from surehold.engine.crypto import Sealer
from surehold.engine.journal.body import keyframe_changes, read_body, read_written
from surehold.engine.journal.draft import Saveable, place_of, rebuild
from surehold.errors import CorruptError, NotFoundError, UsageError
from surehold.storage.base import RecordQuery, RunInfo, RunQuery, Storage, restless, run_of

T = TypeVar("T")

_LOOKS = 100
"""The number of times a run is read again because someone saved to it meanwhile."""
_MOST_DAMAGED = 1000
"""Damaged records of one run that are passed over."""
_NEAR = 256
"""The distance to the head up to which all records after a checkpoint are read and checked."""
_DAMAGED_REMEMBERED = 1024
_CACHED_BYTES = 16 << 20
"""Bytes of the states that were read lately and are kept."""
LIGHTEST_DELTA = 512
"""The least weight of a delta: reading a record costs something, however little it holds."""


class Loaded(msgspec.Struct, frozen=True):
    """A state as text, and what its record and its chain of bases weigh."""

    header: Header
    form: str
    texts: dict[str, bytes]
    key_weight: int
    chain_weight: int
    extras: tuple[bytes, ...] = ()
    """Data of the door beside the state, from the keyframe to this record."""
    deltas: int = 0
    """The number of deltas from the keyframe to this record."""
    written: Written = {}
    """The records that last changed each key, as far as the keyframe knows."""

    @property
    def extra(self) -> dict[str, Any]:
        """Data of the door beside the state, as of this record.

        Of what the records say, a list is added to and anything else replaced.
        """
        whole: dict[str, Any] = {}
        for text in self.extras:
            for key, value in (msgspec.json.decode(text) if text else {}).items():
                old = whole.get(key)
                whole[key] = old + value if isinstance(old, list) else value
        return whole

    @property
    def door(self) -> Door:
        """The door of this checkpoint's run."""
        return self.header.door or derived_door(self.form, self.extra)

    def state(self) -> Saveable:
        """The saved object, decoded."""
        return rebuild(self.form, self.header, self.texts)

    def graph_state(self) -> State:
        """The values as a graph's state, whatever class they are given out as."""
        return State.restore(
            self.texts, place_of(self.header), self.header.saved_at, self.header.id
        )

    @property
    def is_current(self) -> bool:
        """True if its values have the newest version that this code knows."""
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

    @property
    def weight(self) -> int:
        """Bytes that it takes in memory, about."""
        return self.header.size + sum(map(len, self.extras)) + 1024


class Tail(msgspec.Struct, frozen=True):
    """The end of a run: head, newest checkpoint, notes of the open step."""

    run: RunInfo
    loaded: Loaded
    notes: tuple[Record, ...] = ()
    """The notes after the record that `OPEN_FROM` names; empty where they were not asked for."""


class Reader:
    """Finds checkpoints in a storage and rebuilds their states."""

    def __init__(self, storage: Storage, sealer: Sealer) -> None:
        self.storage = storage
        self.sealer = sealer
        self.recover: Callable[[CorruptError], bool] | None = None
        """Repairs a damaged run; True if it can be read again."""
        self.held: dict[str, int] = {}
        """The epochs of the leases whose holders read here, by run: `recover` needs no other."""
        self.damaged_runs: OrderedDict[str, None] = OrderedDict()
        """The runs in which damage was met since their last keyframe."""
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()
        """States that were read lately, by the digests of their records."""
        self._loaded_bytes = 0

    def note_damage(self, run_id: str) -> None:
        """Remember that a run is damaged, until its next keyframe."""
        remember(self.damaged_runs, run_id, None, most=_DAMAGED_REMEMBERED)

    def forget_damage(self, run_id: str) -> None:
        """Note that a run has a keyframe that was written after the damage was known."""
        self.damaged_runs.pop(run_id, None)

    def _recovering(self, look: Callable[[], T]) -> T:
        """Call *look*, and again after a damaged run that it met was repaired."""
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
        """The head of a run, or None if there is no such run."""
        query = RunQuery(run_id=run_id, limit=1)
        return self._recovering(lambda: next(iter(self.storage.runs(query)), None))

    def known(self, run_id: str) -> RunInfo:
        """The head of a run; a `NotFoundError` if there is no such run."""
        run = self.run(run_id)
        if run is None:
            raise unknown_run(run_id)
        return run

    def runs_of(self, name_or_run_id: str) -> Iterator[RunInfo]:
        """The run with that id or, if there is none, those of that name, newest first."""
        run = self.run(name_or_run_id)
        if run is not None:
            yield run
        else:
            yield from self.storage.runs(RunQuery(name=name_or_run_id))

    def known_runs(self, name_or_run_id: str | None) -> list[RunInfo]:
        """The same, or all runs for None; a `NotFoundError` if there are none."""
        if name_or_run_id is None:
            return list(self.storage.runs(RunQuery()))
        runs = list(self.runs_of(name_or_run_id))
        if not runs:
            raise no_run(name_or_run_id)
        return runs

    def to_resume(self, name_or_run_id: str) -> RunInfo | None:
        """The run with that id, or the newest of that name that is not completed.

        Runs of the name that retention has left no checkpoint are passed over.
        """
        return self.run(name_or_run_id) or self._unfinished(name_or_run_id)

    def newest_to_resume(
        self, name_or_run_id: str, scope: str = ""
    ) -> tuple[RunInfo, Header | None] | None:
        """The same with its newest checkpoint, in one storage call for the id of a run."""
        found = self.head_and_newest(name_or_run_id, scope)
        if found is not None:
            return found
        run = self._unfinished(name_or_run_id)
        return self.head_and_newest(run.run_id, scope) if run is not None else None

    def _unfinished(self, name: str) -> RunInfo | None:
        query = RunQuery(name=name, not_status="completed")
        return self._recovering(
            lambda: next((one for one in self.storage.runs(query) if one.checkpoints), None)
        )

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        """The head of a run and the newest visible checkpoint of a scope, of one moment.

        With `recover`, what the checkpoint is built on was read as well, and repaired if need be.
        """
        if self.recover is None:
            return self.storage.head_and_newest(run_id, scope)
        return self._recovering(lambda: self._loadable(run_id, scope))

    def newest(self, run: RunInfo, scope: str = "") -> Header | None:
        """The newest visible checkpoint of a run's scope, checked against the run's head."""
        return self.newest_of(run.run_id, scope)

    def door(self, header: Header) -> Door:
        """The door of a checkpoint's run."""
        return header.door or self.load_visible(header).door

    def newest_of(self, run_id: str, scope: str = "") -> Header | None:
        """The same of the run with that id; None also if there is no such run."""
        found = self.checked_newest(run_id, scope)
        return found[1] if found is not None else None

    def checked_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        """The same with the head that it was checked against; None without a run."""
        if self.recover is None:
            return self._checked(run_id, scope)
        return self._recovering(lambda: self._loadable(run_id, scope))

    def _checked(self, run_id: str, scope: str) -> tuple[RunInfo, Header | None] | None:
        """The same as `head_and_newest`, the records from the checkpoint to the head read."""
        for _ in range(_LOOKS):
            found = self.storage.head_and_newest(run_id, scope)
            if found is None:
                return None
            run, newest = found
            near = newest is not None and run.seq - newest.seq <= _NEAR
            try:
                self._check_tail(
                    run,
                    newest,
                    self.records(run_id, newest.seq if near and newest else run.seq, run.seq),
                )
                return found
            except CorruptError:
                if not self._moved(run):
                    raise
        raise restless(run_id, _LOOKS)

    def _moved(self, run: RunInfo) -> bool:
        """Return whether someone saved to a run or deleted it meanwhile."""
        now = run_of(self.storage, run.run_id)
        return now is None or now.digest != run.digest

    def _loadable(self, run_id: str, scope: str) -> tuple[RunInfo, Header | None] | None:
        """The same as `head_and_newest`, all that the checkpoint is built on read as well."""
        for _ in range(_LOOKS):
            found = self._checked(run_id, scope)
            if found is None or found[1] is None:
                return found
            try:
                self.load(found[1], again=True)
                return found
            except CorruptError:
                if not self._moved(found[0]) and self.is_visible(found[1]):
                    raise
        raise restless(run_id, _LOOKS)

    def is_visible(self, target: Header) -> bool:
        """Return whether a checkpoint is neither hidden nor superseded."""
        return any(found.digest == target.digest for found in self.storage.find(target.id))

    def _check_tail(self, run: RunInfo, newest: Header | None, tail: Iterable[Record]) -> None:
        """Check that *tail* ends with the head, and that it lacks no later checkpoint."""
        last = None
        for last in tail:
            header = last.header
            later = newest is not None and header.seq > newest.seq and header.frame != "note"
            if later and newest and header.scope == newest.scope and self.is_visible(header):
                raise self._damaged(run.run_id, header.seq, "is missing from its index")
        if last is None or last.header.digest != run.digest:
            raise self._damaged(run.run_id, run.seq, "is not the newest that the run's head names")

    def records(self, run_id: str, first: int, last: int) -> Iterator[Record]:
        """The records from *first* to *last*, each checked to follow the one before it."""
        try:
            yield from self._followed(run_id, first, last)
        except CorruptError:
            self.note_damage(run_id)
            raise

    def readable(self, run_id: str, first: int, last: int) -> Iterator[Record | CorruptError]:
        """The records from *first* to *last*; in the place of a damaged one, its error."""
        damaged = 0
        while first <= last:
            try:
                for record in self._followed(run_id, first, last):
                    first = record.header.seq + 1
                    yield record
                return
            except CorruptError as error:
                self.note_damage(run_id)
                damaged += 1
                if damaged > _MOST_DAMAGED:
                    raise
                yield error
                first = max(first, error.facts.get("seq") or 0) + 1

    def readable_headers(self, run: RunInfo, query: RecordQuery) -> list[Header]:
        """The headers that *query* finds in a run, newest first, without damaged ones."""
        try:
            return list(self.storage.headers(query))
        except CorruptError:
            records = self.readable(run.run_id, 1, run.seq)
        whole = [one.header for one in records if not isinstance(one, CorruptError)][::-1]
        if query.before is not None:
            ids = [header.id for header in whole]
            del whole[: ids.index(query.before) + 1 if query.before in ids else None]
        return [header for header in whole if query.matches(header)][: query.limit]

    def _followed(self, run_id: str, first: int, last: int) -> Iterator[Record]:
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
        """The state at a checkpoint just found; a `NotFoundError` if it is gone again."""
        try:
            return self.load(target)
        except CorruptError:
            if self.is_visible(target):
                raise
            # Someone deleted it meanwhile, and what it was built on went as well.
            raise _not_found(target.id) from None

    def tail_of(self, run_id: str, scope: str = "", *, notes: bool = True) -> Tail | None:
        """The end of a run, or of one of its scopes; None without a checkpoint."""
        for _ in range(_LOOKS):
            found = self.head_and_newest(run_id, scope)
            if found is None or found[1] is None:
                return None
            tail = self.read_tail(found[0], found[1], notes=notes)
            if tail is not None:
                return tail
        raise restless(run_id, _LOOKS)

    def read_tail(self, run: RunInfo, newest: Header, *, notes: bool) -> Tail | None:
        """The newest checkpoint of *run* with the later records checked, in one read.

        With *notes*, the notes of its open step come with it. None if the run has changed since
        `head_and_newest` gave the two.
        """
        first, opened = self._first(newest), newest.metadata.get(OPEN_FROM, newest.seq)
        try:
            if run.seq - newest.seq > _NEAR and not notes:
                self._check_tail(run, newest, self.records(run.run_id, run.seq, run.seq))
                return Tail(run, self.load(newest))
            first = min(first, opened + 1) if notes else first
            records = list(self.records(run.run_id, first, run.seq))
            self._check_tail(run, newest, (r for r in records if r.header.seq >= newest.seq))
            loaded = self._rebuild(self._path(records, newest))
        except CorruptError:
            if self._moved(run):
                return None
            raise
        later = (r for r in records if r.header.seq > opened and r.header.frame == "note")
        return Tail(run, loaded, tuple(later) if notes else ())

    def load(self, target: Header, *, again: bool = False) -> Loaded:
        """The state at a checkpoint, rebuilt from its keyframe through its chain of bases.

        One that was read lately is not read again, unless *again* is given.
        """
        known = None if again else self._loaded.get(target.digest)
        if known is not None:
            return known
        records = self.records(target.run_id, self._first(target), target.seq)
        loaded = self._rebuild(self._path(records, target))
        self._remember(loaded)
        return loaded

    def _remember(self, loaded: Loaded) -> None:
        digest = loaded.header.digest
        if loaded.weight > _CACHED_BYTES or digest in self._loaded:
            return
        self._loaded[digest] = loaded
        self._loaded_bytes += loaded.weight
        while self._loaded_bytes > _CACHED_BYTES and self._loaded:
            with suppress(KeyError):  # another thread may have taken it out
                self._loaded_bytes -= self._loaded.popitem(last=False)[1].weight

    def forget_states(self) -> None:
        """Read every state again, as after a run's key was erased."""
        self._loaded.clear()
        self._loaded_bytes = 0

    def values(self, target: Header, keys: Collection[str]) -> dict[str, bytes]:
        """The texts of some values at a checkpoint; others are not copied or decoded."""
        known = self._loaded.get(target.digest)
        if known is not None:
            return {key: known.texts[key] for key in keys if key in known.texts}
        path = self._path(self.records(target.run_id, self._first(target), target.seq), target)
        return self._rebuild(path, frozenset(keys)).texts

    def _first(self, target: Header) -> int:
        """The seq of the keyframe that a checkpoint is built on."""
        first = target.seq if target.frame == "key" else target.key_seq
        if first is None:
            raise self._damaged(target.run_id, target.seq, "is a delta without a keyframe")
        return first

    def _path(self, records: Iterable[Record], target: Header) -> list[Record]:
        """The records that a checkpoint is built from, its keyframe first."""
        chain = {
            record.header.seq: record
            for record in records
            if record.header.frame != "note" and record.header.scope == target.scope
        }
        path = []
        seq: int | None = target.seq
        while True:
            record = chain.get(seq) if seq is not None else None
            if record is None:
                raise self._damaged(target.run_id, seq, f"is missing, and {target.seq} needs it")
            path.append(record)
            if record.header.frame == "key":
                break
            seq = record.header.base_seq
        if path[0].header.digest != target.digest:
            raise self._damaged(target.run_id, target.seq, "is not the one that was asked for")
        return path[::-1]

    def _rebuild(self, path: list[Record], only: frozenset[str] | None = None) -> Loaded:
        target = path[-1].header
        key = read_body(self.sealer.open(path[0]), path[0].header)
        weight = 0
        try:
            made = Rebuilt(key.state, only)
            extras = [bytes(key.extra)]
            written = after_change(
                read_written(key), keyframe_changes(key, made.keys()), path[0].header.seq
            )
            for record in path[1:]:
                text = self.sealer.open(record)
                weight += max(len(text), LIGHTEST_DELTA)
                body = read_body(text, record.header)
                written = after_change(written, made.apply(body.patch), record.header.seq)
                extras.append(bytes(body.extra))
            texts = made.texts()
        except (msgspec.MsgspecError, LookupError, ValueError, TypeError) as error:
            raise self._damaged(target.run_id, target.seq, "cannot be rebuilt") from error
        key_weight = len(key.state) + len(key.extra)
        return Loaded(
            target, key.form, texts, key_weight, weight, tuple(extras), len(path) - 1, written
        )

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
        self.note_damage(run_id)
        return CorruptError(f"record {seq} of run {run_id!r} {what}", run_id=run_id, seq=seq)


def no_run(name: str) -> NotFoundError:
    """The error for a run or name that does not exist."""
    return NotFoundError(f"no run or name {name!r}", hint="check the spelling", run_id=name)


def unknown_run(run_id: str) -> NotFoundError:
    """The error for a run id that does not exist."""
    hint = "surehold runs lists the runs of a storage"
    return NotFoundError(f"no run {run_id!r}", hint=hint, run_id=run_id)


def _not_found(checkpoint_id: str) -> NotFoundError:
    return NotFoundError(
        f"no checkpoint {checkpoint_id!r}",
        hint="list_checkpoints() shows those there are",
        checkpoint_id=checkpoint_id,
    )
