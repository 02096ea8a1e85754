"""What one who can write to the storage, and has no key, can do to an encrypted run: be noticed.

Digests need no key, so the forger here seals what was altered as well as the engine would.
"""

from __future__ import annotations

import base64
import gzip
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zstandard

from surehold import CheckpointManager, FilesystemStorage, MemoryStorage, SQLiteStorage, State
from surehold.core.records.record import Header, Record, digest_of
from surehold.engine.journal.requests import Note
from surehold.errors import CorruptError, DataError, SureholdError, WrongKeyError
from surehold.storage.base import Batch, Storage

KEY, OTHER = "6b" * 32, "7c" * 32

MEDIA: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda path: MemoryStorage(),
    "sqlite": lambda path: SQLiteStorage(path / "runs.db"),
    "sqlite-zstd": lambda path: SQLiteStorage(path / "runs.db", compress="zstd"),
    "file": lambda path: FilesystemStorage(path / "runs"),
    "file-gzip": lambda path: FilesystemStorage(path / "runs", compress=True),
    "file-zstd": lambda path: FilesystemStorage(path / "runs", compress="zstd"),
}

_numbers = itertools.count(1)


@pytest.fixture(params=MEDIA)
def new_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Storage]]:
    """Makes storages of one medium."""
    opened: list[Storage] = []

    def make() -> Storage:
        folder = tmp_path / f"storage{next(_numbers)}"
        folder.mkdir()
        opened.append(MEDIA[request.param](folder))
        return opened[-1]

    yield make
    for storage in opened:
        storage.close()


def begin(storage: Storage, run_id: str = "mine") -> list[Record]:
    """An encrypted run of a few checkpoints; its records."""
    manager = CheckpointManager(storage, encryption_key=KEY)
    state = State.new({"plan": ["first"], "owner": run_id}, run_id=run_id)
    for step in range(1, 5):
        state = state.append("plan", f"step {step}").at(step=step)
        manager.save_checkpoint(state)
    return list(storage.read(run_id))


def forged(header: Header, body: bytes, *, stored: int | None = None) -> Record:
    """*body* sealed under *header*, with digests that fit."""
    header = msgspec.structs.replace(
        header, body=digest_of(body), stored=len(body) if stored is None else stored, digest=""
    )
    text = msgspec.json.encode(header)
    return Record(msgspec.structs.replace(header, digest=digest_of(text)), text, body)


def put(storage: Storage, records: list[Record]) -> CheckpointManager:
    """A manager with the right key, over a storage that holds these records."""
    run_id = records[0].header.run_id
    assert storage.append([Batch(run_id=run_id, records=tuple(records))]) == [None]
    return CheckpointManager(storage, encryption_key=KEY)


def refusal(manager: CheckpointManager) -> SureholdError:
    """How the newest state of the run is refused, loaded in whichever way."""
    with pytest.raises(SureholdError) as resumed:
        manager.resume_from_latest("mine")
    newest = manager.list_checkpoints("mine")[0].checkpoint_id
    with pytest.raises(type(resumed.value)) as loaded:
        manager.load_checkpoint(newest)
    assert loaded.value.message == resumed.value.message
    assert manager.verify("mine")[0].problems
    return resumed.value


def swapped(new_storage: Callable[[], Storage], records: list[Record]) -> list[Record]:
    """The newest record has the body of an earlier one."""
    return [*records[:-1], forged(records[-1].header, records[-2].body)]


def taken_from_another_run(
    new_storage: Callable[[], Storage], records: list[Record]
) -> list[Record]:
    theirs = begin(new_storage(), "theirs")
    return [*records[:-1], forged(records[-1].header, theirs[-1].body)]


def downgraded(new_storage: Callable[[], Storage], records: list[Record]) -> list[Record]:
    """The newest record says in the clear what the forger likes."""
    header = msgspec.structs.replace(records[-1].header, frame="key", base_seq=None, key_seq=None)
    return [*records[:-1], forged(header, b'{"state":{"plan":["pay me"]},"patch":[]}')]


def downgraded_and_compressed(
    new_storage: Callable[[], Storage], records: list[Record]
) -> list[Record]:
    body = zstandard.ZstdCompressor().compress(b'{"state":{"plan":["pay me"]},"patch":[]}')
    return [*records[:-1], forged(records[-1].header, body)]


def truncated(new_storage: Callable[[], Storage], records: list[Record]) -> list[Record]:
    newest = records[-1]
    return [*records[:-1], forged(newest.header, newest.body[:-5], stored=len(newest.body))]


def cut_down_to_almost_nothing(
    new_storage: Callable[[], Storage], records: list[Record]
) -> list[Record]:
    return [*records[:-1], forged(records[-1].header, records[-1].body[:20])]


def replayed(new_storage: Callable[[], Storage], records: list[Record]) -> list[Record]:
    """The body was written for this very seq of this very run, in another course of events."""
    manager = put(new_storage(), records[:-1])
    state = manager.resume_from_latest("mine")
    manager.save_checkpoint(state.append("plan", "something else").at(step=4, node="elsewhere"))
    other = list(manager.storage.read("mine"))[-1]
    assert other.header.seq == records[-1].header.seq
    return [*records[:-1], forged(records[-1].header, other.body)]


def altered_header(new_storage: Callable[[], Storage], records: list[Record]) -> list[Record]:
    """The body stays, and the header says that the run is completed."""
    header = msgspec.structs.replace(records[-1].header, status="completed")
    return [*records[:-1], forged(header, records[-1].body)]


def altered(new_storage: Callable[[], Storage], records: list[Record]) -> list[Record]:
    body = bytearray(records[-1].body)
    body[-1] ^= 1
    return [*records[:-1], forged(records[-1].header, bytes(body))]


FORGERIES = [
    (swapped, "moved"),
    (taken_from_another_run, "moved"),
    (downgraded, "plain"),
    (downgraded_and_compressed, "plain"),
    (truncated, "truncated"),
    (cut_down_to_almost_nothing, "truncated"),
    (replayed, "replayed"),
    (altered_header, "replayed"),
    (altered, "altered"),
]


@pytest.mark.parametrize(
    ("forge", "reason"), FORGERIES, ids=lambda part: getattr(part, "__name__", part)
)
def test_a_forged_record_is_refused_and_told_what_it_is(
    new_storage: Callable[[], Storage],
    forge: Callable[[Callable[[], Storage], list[Record]], list[Record]],
    reason: str,
) -> None:
    records = begin(new_storage())
    error = refusal(put(new_storage(), forge(new_storage, records)))
    assert isinstance(error, CorruptError)
    assert error.reason == reason
    assert error.seq == records[-1].header.seq


def test_each_forgery_and_the_wrong_key_have_an_error_of_their_own(
    new_storage: Callable[[], Storage],
) -> None:
    records = begin(new_storage())
    messages = set()
    for forge in (swapped, downgraded, truncated, replayed, altered):
        messages.add(refusal(put(new_storage(), forge(new_storage, records))).message)
    for key in (OTHER, None):
        storage = new_storage()
        put(storage, records)
        error = refusal(CheckpointManager(storage, encryption_key=key))
        assert isinstance(error, WrongKeyError)
        messages.add(error.message)
    assert len(messages) == 7


def test_the_wrong_key_says_which_one_is_wanted_and_shows_none(
    new_storage: Callable[[], Storage],
) -> None:
    storage = new_storage()
    records = begin(storage)
    wanted = msgspec.json.decode(records[0].body)["key"]
    error = refusal(CheckpointManager(storage, encryption_key=OTHER))
    assert isinstance(error, WrongKeyError)
    assert error.wanted == wanted
    assert KEY not in str(error) and OTHER not in str(error)


def test_a_key_note_of_another_run_opens_nothing(new_storage: Callable[[], Storage]) -> None:
    records, theirs = begin(new_storage()), begin(new_storage(), "theirs")
    moved = msgspec.structs.replace(records[-1].header, seq=records[-1].header.seq + 1, id="k")
    header = msgspec.structs.replace(
        moved,
        frame="note",
        kind="key",
        prev=records[-1].header.digest,
        base_seq=None,
        key_seq=None,
    )
    error = refusal(put(new_storage(), [*records, forged(header, theirs[0].body)]))
    assert isinstance(error, CorruptError)
    assert "key note" in error.message


def test_a_plain_run_is_not_taken_for_an_encrypted_one(new_storage: Callable[[], Storage]) -> None:
    storage = new_storage()
    CheckpointManager(storage).save_checkpoint(State.new({"plan": ["pay me"]}, run_id="mine"))
    with pytest.raises(DataError):
        CheckpointManager(storage, encryption_key=KEY).resume_from_latest("mine")


def test_nothing_forged_can_be_saved_upon(new_storage: Callable[[], Storage]) -> None:
    records = begin(new_storage())
    for forge in (swapped, downgraded, truncated, replayed, altered):
        manager = put(new_storage(), forge(new_storage, records))
        with pytest.raises(CorruptError):
            manager.save_checkpoint(State.new({"plan": []}, run_id="mine").at(step=9))


SECRETS = ["a plan that nobody may see", "größer als gedacht", "4929123456789"]


@pytest.mark.parametrize("medium", [medium for medium in MEDIA if medium != "memory"])
def test_the_plaintext_is_nowhere_in_the_files(medium: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    storage = MEDIA[medium](home)
    manager = CheckpointManager(storage, encryption_key=KEY, retention_count=20)
    state = State.new({"plan": [], "secret": SECRETS[0]}, run_id="mine", name="bot")
    for step in range(1, 120):
        state = state.append("plan", {"text": f"{SECRETS[1]} {step}", "card": SECRETS[2]})
        checkpoint_id = manager.save_checkpoint(state.at(step=step))
        found_nothing(home)
    manager.append_notes("mine", [Note(kind="effect", content={"result": SECRETS[2]})])
    manager.tag(checkpoint_id, "good")
    manager.export_run("mine", home / "mine.surehold")
    manager.fork_from_checkpoint(checkpoint_id, "fork")
    manager.cleanup_old_checkpoints("bot")
    found_nothing(home)
    storage.close()
    found_nothing(home)
    with MEDIA[medium](home) as again:
        opened = CheckpointManager(again, encryption_key=KEY)
        assert opened.resume_from_latest("mine")["secret"] == SECRETS[0]
        for record in again.read("mine"):
            assert not any(secret.encode() in record.text + record.body for secret in SECRETS)


def found_nothing(home: Path) -> None:
    """No file holds a secret or the key, as it is, compressed or in base64."""
    needles = [secret.encode() for secret in SECRETS] + [KEY.encode(), bytes.fromhex(KEY)]
    needles += [base64.b64encode(needle)[4:-4] for needle in needles]
    files = [path for path in home.rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data += gzip.decompress(data)
        if path.suffix == ".zst":
            reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
            data += reader.read()
        assert not any(needle in data for needle in needles), path


def test_the_search_for_plaintext_finds_it_where_there_is_some(tmp_path: Path) -> None:
    for medium in ("sqlite", "file", "file-gzip", "file-zstd"):
        home = tmp_path / medium
        home.mkdir()
        with MEDIA[medium](home) as storage:
            state = State.new({"secret": SECRETS[0]}, run_id="mine")
            CheckpointManager(storage).save_checkpoint(state)
            with pytest.raises(AssertionError):
                found_nothing(home)
