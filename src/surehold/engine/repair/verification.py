"""Verification: recompute digests, follow the chain, rebuild every checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import msgspec

from surehold.core.records import Chain, Header, Range, Record, covers, read_prune_note
from surehold.core.values import Rebuilt, encode
from surehold.engine.crypto import Sealer, is_clear
from surehold.engine.journal import Reader, read_body
from surehold.engine.repair.plan import pruned_in
from surehold.errors import CorruptError, SureholdError
from surehold.storage.base import RecordQuery, Repairable, RunInfo, RunQuery

_TRIES = 100
"""Walks over a run that moves on and is pruned during each of them."""
_UNREADABLE = (SureholdError, msgspec.MsgspecError, LookupError, ValueError, TypeError)


class RunVerdict(msgspec.Struct, frozen=True):
    """The result of verifying a run. It is true if there are no problems."""

    run_id: str
    records: int
    problems: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.problems


def verify_run(reader: Reader, run: RunInfo) -> RunVerdict:
    """Verify a run up to the head that *run* names.

    A run that is saved and pruned meanwhile is not accused of what a later prune explains, nor a
    run in the clear of having no key.
    """
    known = reader
    if reader.sealer.keys is not None and is_clear(reader.storage, run.run_id):
        reader = Reader(reader.storage, Sealer(reader.storage))
    before: list[str] = []
    for _ in range(_TRIES):
        walk = _Walk(reader, run)
        problems = walk.problems()
        now = _run_now(reader, run) if problems else run
        if now is None:
            return RunVerdict(run.run_id, walk.count, ())  # deleted meanwhile
        if now.seq == run.seq:
            break
        pruned = pruned_in(reader.records(run.run_id, run.seq + 1, now.seq))
        problems = walk.problems(pruned)
        if not problems or problems == before:
            break
        # Records vanished while they were read, perhaps: damage is the same next time.
        run, before = now, problems
    if problems:
        known.note_damage(run.run_id)
    return RunVerdict(run.run_id, walk.count, tuple(problems))


def _run_now(reader: Reader, run: RunInfo) -> RunInfo | None:
    """The head of a run that has problems; the known one if its end is damaged."""
    try:
        return reader.run(run.run_id)
    except CorruptError:
        return run


def verify_headers(reader: Reader, run: RunInfo) -> RunVerdict:
    """Verify a run without its bodies: head, visible headers, existence of keyframes."""
    problems: list[str] = []
    count = 0
    seqs: set[int] = set()
    needed: dict[int, int] = {}
    try:
        reader.newest(run)
        for header in reader.storage.headers(RecordQuery(run_id=run.run_id, notes=True)):
            count += 1
            seqs.add(header.seq)
            if header.key_seq is not None:
                needed[header.key_seq] = header.seq
        for key_seq, seq in needed.items():
            hidden = reader.storage.read(run.run_id, first=key_seq, last=key_seq)
            if key_seq not in seqs and next(hidden, None) is None:
                problems.append(f"record {key_seq} is missing, and checkpoint {seq} is built on it")
    except SureholdError as error:
        problems.append(error.message)
    return RunVerdict(run.run_id, count, tuple(problems))


def verify_missing(reader: Reader, *, thorough: bool = True) -> list[RunVerdict]:
    """Verdicts on runs that were stored and not deleted, and are gone.

    A storage knows them by what is left of them, and the newest checkpoint of a group by its
    members. Unless *thorough*, only the members of groups are looked for.
    """
    storage = reader.storage
    found: dict[str, RunVerdict] = {}
    runs = list(storage.runs(RunQuery(name=None if thorough else "group")))
    listed = {run.run_id for run in runs}
    if thorough and isinstance(storage, Repairable):
        unlisted = [run_id for run_id in storage.known_runs() if run_id not in listed]
        for run_id in dict.fromkeys([*storage.lost_runs(), *unlisted]):
            one = storage.inspect(run_id)
            if one is not None and one.problems:
                found[run_id] = RunVerdict(run_id, len(one.records), one.problems)
    groups = [run for run in runs if run.name == "group"]
    for run_id, group in _members(reader, groups):
        if run_id not in listed and (thorough or not storage.has_run(run_id)):
            problem = f"run {run_id!r} is missing, and {group!r} has a checkpoint of it"
            found.setdefault(run_id, RunVerdict(run_id, 0, (problem,)))
    return list(found.values())


def _members(reader: Reader, groups: Iterable[RunInfo]) -> Iterator[tuple[str, str]]:
    """The runs in the newest checkpoint of each group, with the run of the group."""
    for run in groups:
        with suppress(SureholdError):  # a damaged one has a verdict of its own
            newest = reader.newest(run)
            if newest is not None and newest.kind == "group":
                state = reader.load_visible(newest).graph_state()
                yield from ((str(run_id), run.run_id) for run_id in state["members"])


def state_text(texts: Mapping[str, bytes]) -> bytes:
    """Return the text of a whole state, from the texts of its values."""
    return b"{%b}" % b",".join(b"%b:%b" % (encode(k), text) for k, text in texts.items())


class _Walk:
    """One pass over a run: each state is rebuilt from the one before it."""

    def __init__(self, reader: Reader, run: RunInfo) -> None:
        self._reader = reader
        self._run = run
        self._chain = Chain()
        self._announced: dict[int, str] = {}
        self._rebuilt: dict[str, tuple[int, Rebuilt]] = {}
        self._misplaced: list[str] = []
        self._unreadable: list[tuple[Header, str]] = []
        self.error: SureholdError | None = None
        self.count = 0
        try:
            for record in reader.records(run.run_id, 1, run.seq):
                self._visit(record)
        except SureholdError as error:
            self.error = error

    def _visit(self, record: Record) -> None:
        header = record.header
        wrong = self._chain.add(header)
        if wrong:
            self._misplaced.append(f"record {header.seq} {wrong}")
        self.count += 1
        if header.frame == "note":
            if header.kind == "prune":
                gaps = read_prune_note(record.body)
                self._announced.update({gap.last: gap.digest for gap in gaps})
            return
        try:
            self._rebuild(record)
        except _UNREADABLE as error:
            self._rebuilt.pop(header.scope, None)
            self._unreadable.append((header, str(error)))

    def _rebuild(self, record: Record) -> None:
        header = record.header
        seq, made = self._rebuilt.get(header.scope, (0, None))
        body = read_body(self._reader.sealer.open(record), header)
        if header.frame == "key":
            made = Rebuilt(bytes(body.state))
        elif made is not None and seq == header.base_seq:
            made.apply(bytes(body.patch))
        else:
            made = Rebuilt(state_text(self._reader.load(header, again=True).texts))
        self._rebuilt[header.scope] = (header.seq, made)

    def problems(self, pruned: list[Range] | None = None) -> list[str]:
        """List the problems that *pruned*, the ranges pruned since, do not explain."""
        gone = pruned or []
        run, chain = self._run, self._chain
        found = [*self._misplaced]
        found += (
            f"checkpoint {header.id} (step {header.step}): {why}"
            for header, why in self._unreadable
            if not self._is_left_over(header, gone)
        )
        if self.error is not None:
            return [*found, self.error.message]
        if (chain.seq, chain.digest) != (run.seq, run.digest) and not covers(
            gone, chain.seq + 1, run.seq
        ):
            found.append(f"the newest record is {chain.seq}, not {run.seq}")
        found += (
            f"records {gap.first} to {gap.last} are missing, and no prune explains it"
            for gap in chain.unexplained(self._announced)
            if not covers(gone, gap.first, gap.last)
        )
        try:
            return [*found, *self._sizes(), *self._lookups()]
        except SureholdError as error:
            return [*found, error.message]

    def _is_left_over(self, header: Header, gone: list[Range]) -> bool:
        """True if a checkpoint is hidden and a prune has removed its base or itself."""
        key_seq = header.key_seq or header.seq
        holes = [(gap.first, gap.last) for gap in self._chain.gaps]
        if not covers(holes, key_seq) and not any(first <= header.seq for first, _ in gone):
            return False
        found = self._reader.storage.find(header.id)
        return (header.run_id, header.seq) not in [(one.run_id, one.seq) for one in found]

    def _sizes(self) -> list[str]:
        found: list[str] = []
        for scope, (seq, made) in self._rebuilt.items():
            query = RecordQuery(run_id=self._run.run_id, scope=scope, limit=1)
            header = next(iter(self._reader.storage.headers(query)), None)
            if header and header.seq == seq and header.size != len(state_text(made.texts())):
                found.append(f"record {seq} does not have the size it says")
        return found

    def _lookups(self) -> list[str]:
        """Check that every listed checkpoint can be found by its id, as loading does."""
        lost = self._not_found()
        if not lost:
            return []
        again = self._not_found()  # one that was pruned between listing and looking is not lost
        return [f"checkpoint {one} cannot be found by its id" for one in lost if one in again]

    def _not_found(self) -> list[str]:
        storage = self._reader.storage
        lost: list[str] = []
        for header in storage.headers(RecordQuery(run_id=self._run.run_id)):
            places = [(found.run_id, found.scope) for found in storage.find(header.id)]
            if (header.run_id, header.scope) not in places:
                lost.append(header.id)
        return lost
