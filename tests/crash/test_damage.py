"""Whatever happens to what is stored, a manager says so, or gives what was saved."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.crash.media import EVERY, FULL, KEY, manager_on, open_medium, some
from tests.crash.tampering import Files, InMemory, Medium, Parts, Tables

from surehold import CheckpointManager, CheckpointMetadata, MemoryStorage, State
from surehold.core.records import record
from surehold.core.records.record import open_header
from surehold.core.values.codec import encode
from surehold.errors import CorruptError, DataError, StorageError
from surehold.storage.files.lines import Codec

SAMPLE = ("sqlite", "file", "file-gzip", "file-zstd", "sqlite-zstd-encrypted", "file-encrypted")
MEDIA = EVERY if FULL else SAMPLE
FLIPS, CUTS, EXCHANGES = 40, 15, 25

pytestmark = pytest.mark.timeout(36_000 if FULL else 600)

Seen = dict[str, Any]


def fill(manager: CheckpointManager) -> list[str]:
    """Two runs of one name, with deltas, a tag, a pin and a deleted checkpoint, whose id is last.

    It is little, because all that is done to it is done to every bit of it.
    """
    ids = []
    state = State.new({"messages": []}, run_id="run", name="job")
    for step in range(1, 4):
        # Long enough that a compressed body is smaller.
        state = state.append("messages", {"role": "user", "content": f"step {step} " * 12})
        ids.append(manager.save_checkpoint(state.at(step=step, metadata={"n": step})))
    manager.tag(ids[2], "good")
    manager.pin(ids[0])
    gone = ids.pop(1)
    manager.delete_checkpoint(gone)
    other = State.new({"total": 0}, run_id="other", name="job")
    ids.append(manager.save_checkpoint(other.set("total", 1).at(step=1)))
    return [*ids, gone]


def plain(state: Any) -> Any:
    return None if state is None else (encode(state.to_dict()), state.place, state.checkpoint_id)


def look(manager: CheckpointManager, ids: Iterable[str]) -> Seen:
    """What every way of reading gives, an error being its class."""
    ways: dict[str, Callable[[], Any]] = {
        "latest of run": lambda: plain(manager.resume_from_latest("run")),
        "latest of other": lambda: plain(manager.resume_from_latest("other")),
        "latest of name": lambda: plain(manager.resume_from_latest("job")),
        "list": manager.list_checkpoints,
        "list of run": lambda: manager.list_checkpoints("run"),
        "list of name": lambda: manager.list_checkpoints("job"),
        "list by tag": lambda: manager.list_checkpoints(tag="good"),
        "history": lambda: [(e.checkpoint, e.changes) for e in manager.history("run")],
        "blame": lambda: manager.blame("run", "messages"),
        "tree": lambda: manager.get_checkpoint_tree("run"),
        "verify": lambda: [(v.run_id, bool(v)) for v in manager.verify()],
        **{
            f"load {n}": lambda id_=id_: plain(manager.load_checkpoint(id_))
            for n, id_ in enumerate(ids)
        },
    }
    seen: Seen = {}
    for name, way in ways.items():
        try:
            seen[name] = way()
        except Exception as error:
            seen[name] = type(error)
    return seen


def untagged(one: CheckpointMetadata) -> CheckpointMetadata:
    return msgspec.structs.replace(one, tags=())


LISTINGS = ("list", "list of name", "list by tag")


def judge(sound: Seen, seen: Seen) -> str:
    """Whether damage was detected or changed nothing; anything else is an assertion that fails."""
    others = {way for way, what in seen.items() if what != sound[way]} - {"verify"}
    for way in others:
        what = seen[way]
        error = isinstance(what, type) and issubclass(what, (DataError, StorageError))
        if way in LISTINGS and not error:
            # Over many runs, what is damaged is left out with a warning, and the rest is as it was.
            # Tags are notes of their run, which may be what is damaged.
            assert isinstance(what, list)
            whole = [untagged(one) for one in sound[way]]
            error = all(untagged(one) in whole for one in what)
            error = error and seen["verify"] != sound["verify"]
        assert error, f"{way} gave {what}, not {sound[way]}"
    # An index by name or tag is not part of a run, which is what verify looks at.
    if any(way.startswith(("latest of run", "latest of other", "load")) for way in others):
        assert seen["verify"] != sound["verify"], "verify saw nothing"
    return "detected" if others else "unchanged"


class Stored:
    """A medium with something in it, of which copies are damaged and looked at."""

    def __init__(self, medium: str, tmp_path: Path) -> None:
        self.medium = medium
        self.directory = tmp_path / "looked-at"
        self.directory.mkdir()
        with open_medium(medium, self.directory) as storage:
            self.ids = fill(manager_on(storage, medium))
        self._whole = tmp_path / "whole"
        shutil.copytree(self.directory, self._whole)
        self.sound = self.look()
        deleted = f"load {len(self.ids) - 1}"
        assert [k for k, w in self.sound.items() if isinstance(w, type)] == [deleted]

    def look(self) -> Seen:
        try:
            with open_medium(self.medium, self.directory) as storage:
                return look(manager_on(storage, self.medium), self.ids)
        except (DataError, StorageError) as error:
            return dict.fromkeys(self.sound, type(error))

    def files(self) -> list[Path]:
        """The files that hold the records."""
        found = [*self._whole.glob("runs.db"), *self._whole.glob("runs/[!.]*/*")]
        return [path.relative_to(self._whole) for path in sorted(found)]

    def judge(self, path: Path, data: bytes) -> str:
        """What a reader makes of *data* in the place of a file."""
        # A reader may leave something of its own, such as a log.
        for name in ("runs.db-wal", "runs.db-shm"):
            (self.directory / name).unlink(missing_ok=True)
        (self.directory / path).write_bytes(data)
        result = judge(self.sound, self.look())
        (self.directory / path).write_bytes(self.bytes_of(path))
        return result

    def bytes_of(self, path: Path) -> bytes:
        return (self._whole / path).read_bytes()

    def tampering(self) -> Medium:
        if self.medium.startswith("sqlite"):
            return Tables(self.directory / "runs.db")
        codec: Codec = "gzip" if "gzip" in self.medium else "zstd" if "zstd" in self.medium else ""
        return Files(self.directory / "runs", codec)


@pytest.fixture(params=MEDIA)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    return Stored(request.param, tmp_path)


def bits_of(stored: Stored) -> Iterator[tuple[Path, int]]:
    """Every bit of the records' files; of a database, those of the records.

    Of the other bytes of a database one bit each, but only of the plain one: its pages are laid
    out alike whatever the records hold.
    """
    for path in stored.files():
        data = stored.bytes_of(path)
        if path.name != "runs.db":
            yield from ((path, bit) for bit in range(8 * len(data)))
            continue
        chance = random.Random(3)
        within: set[int] = set()
        for parts in stored.tampering().take():
            for piece in (parts.text, parts.body, bytes.fromhex(parts.digest)):
                start = data.find(piece)
                within.update(range(start, start + len(piece)) if start >= 0 else ())
        for byte in range(len(data)):
            if byte in within:
                yield from ((path, 8 * byte + bit) for bit in range(8))
            elif stored.medium == "sqlite":
                yield path, 8 * byte + chance.randrange(8)


def test_every_flipped_bit_is_detected_or_changes_nothing(
    stored: Stored, finding: Callable[..., None]
) -> None:
    found: Counter[str] = Counter()
    for path, bit in some(bits_of(stored), FLIPS, stored.medium):
        data = bytearray(stored.bytes_of(path))
        data[bit // 8] ^= 1 << bit % 8
        try:
            found[stored.judge(path, bytes(data))] += 1
        except AssertionError as error:
            error.add_note(f"bit {bit % 8} of byte {bit // 8} of {path}")
            raise
    finding(f"a flipped bit, {stored.medium}", found.total(), f"{tell(found)}, 0 silent")
    assert found["detected"] > 0


def cuts_of(stored: Stored, size: int) -> Iterable[int]:
    """Every length; of a database that is like the plain one, those around the ends of pages."""
    if not stored.medium.startswith("sqlite-"):
        return range(size)
    return [length for length in range(size) if length % 512 in (0, 1, 511)]


def test_every_truncation_is_detected(stored: Stored, finding: Callable[..., None]) -> None:
    found: Counter[str] = Counter()
    for path in stored.files():
        data = stored.bytes_of(path)
        for size in some(cuts_of(stored, len(data)), CUTS, stored.medium):
            try:
                found[stored.judge(path, data[:size])] += 1
            except AssertionError as error:
                error.add_note(f"{path} cut to {size} of {len(data)} bytes")
                raise
    finding(f"a truncation, {stored.medium}", found.total(), f"{tell(found)}, 0 silent")
    assert found["detected"] > 0


def exchanges(records: list[Parts]) -> Iterator[tuple[str, list[Parts | None]]]:
    """Two records swapped, or one put in the place of another, whole or only its body."""
    for one, two in permutations(range(len(records)), 2):
        first, second = records[one], records[two]
        copied: list[Parts | None] = [*records]
        copied[one] = second
        yield f"{two} in the place of {one}", copied
        copied = [*records]
        copied[one] = Parts(first.digest, first.text, second.body)
        yield f"the body of {two} in {one}", copied
        if one < two:
            swapped: list[Parts | None] = [*records]
            swapped[one], swapped[two] = second, first
            yield f"{one} and {two} swapped", swapped


def test_records_that_are_swapped_or_doubled_are_detected(
    stored: Stored, finding: Callable[..., None]
) -> None:
    found: Counter[str] = Counter()
    tampering = stored.tampering()
    records = tampering.take()
    for what, changed in some(exchanges(records), EXCHANGES, stored.medium):
        tampering.put(changed)
        try:
            found[judge(stored.sound, stored.look())] += 1
        except AssertionError as error:
            error.add_note(what)
            raise
    finding(f"exchanged records, {stored.medium}", found.total(), f"{tell(found)}, 0 silent")
    assert found["detected"] > 0


def test_a_record_that_is_missing_before_others_is_named_by_verify(stored: Stored) -> None:
    tampering = stored.tampering()
    records = tampering.take()
    headers = [open_header(parts.text, parts.digest) for parts in records]
    newest = {header.run_id: header.seq for header in headers}
    for place, header in enumerate(headers):
        if header.seq == newest[header.run_id]:
            continue
        without: list[Parts | None] = [*records]
        without[place] = None
        tampering.put(without)
        seen = stored.look()
        assert seen["verify"] != stored.sound["verify"], header
        for way in ("latest of run", "latest of other"):
            assert seen[way] in (stored.sound[way], CorruptError)


class Same(str):
    """A digest that is like any other."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def test_the_test_sees_what_a_reader_without_digests_believes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finding: Callable[..., None]
) -> None:
    stored = Stored("file", tmp_path)
    monkeypatch.setattr(record, "digest_of", lambda data: Same())
    found: Counter[str] = Counter()
    for path, bit in random.Random(1).sample(list(bits_of(stored)), 100):
        data = bytearray(stored.bytes_of(path))
        data[bit // 8] ^= 1 << bit % 8
        try:
            found[stored.judge(path, bytes(data))] += 1
        except AssertionError:
            found["silent"] += 1
            (stored.directory / path).write_bytes(stored.bytes_of(path))
    finding("a flipped bit, read without digests", found.total(), tell(found), control=True)
    assert found["silent"] > 10


@pytest.mark.parametrize("options", [{}, {"encryption_key": KEY}], ids=["clear", "encrypted"])
def test_damage_in_memory_is_detected_or_changes_nothing(
    options: dict[str, Any], finding: Callable[..., None]
) -> None:
    storage = MemoryStorage()
    ids = fill(CheckpointManager(storage, **options))
    sound = look(CheckpointManager(storage, **options), ids)
    tampering = InMemory(storage)
    records = tampering.take()
    found: Counter[str] = Counter()
    every = [*flips(records), *exchanges(records)]
    for what, changed in some(every, 4 * FLIPS):
        tampering.put(changed)
        try:
            found[judge(sound, look(CheckpointManager(storage, **options), ids))] += 1
        except AssertionError as error:
            error.add_note(what)
            raise
    kind = "encrypted" if options else "clear"
    finding(f"damage in memory, {kind}", found.total(), f"{tell(found)}, 0 silent")
    assert found["detected"] > 0


def flips(records: list[Parts]) -> Iterator[tuple[str, list[Parts | None]]]:
    """Every bit of every part of every record flipped."""
    for number, parts in enumerate(records):
        for name in ("digest", "text", "body"):
            value = getattr(parts, name)
            data = value.encode() if isinstance(value, str) else value
            for bit in range(8 * len(data)):
                damaged = bytearray(data)
                damaged[bit // 8] ^= 1 << bit % 8
                made: Any = bytes(damaged)
                if name == "digest":
                    made = made.decode("latin-1")
                changed: list[Parts | None] = [*records]
                fields = {"digest": parts.digest, "text": parts.text, "body": parts.body}
                changed[number] = Parts(**{**fields, name: made})
                yield f"bit {bit} of the {name} of record {number}", changed


def tell(found: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in found.items())
