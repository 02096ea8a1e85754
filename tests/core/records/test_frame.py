from __future__ import annotations

import json
import os
import random
import statistics
import string
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surehold.core.records import frame
from surehold.core.records.doors import Door
from surehold.core.records.record import Header, open_record, seal
from surehold.errors import (
    CorruptError,
    DataError,
    EncodeError,
    MissingExtraError,
    UsageError,
    WrongKeyError,
)

DATA_KEY, KEY = b"d" * 32, b"k" * 32
NONCE = bytes(range(12))
SECRET = b'{"state":{"card":"4929-1234-5678-9012"}}'
HEADER = Header(
    run_id="run-1",
    seq=7,
    id="0197",
    frame="delta",
    saved_at=datetime(2026, 11, 15, 20, 30, tzinfo=UTC),
    metadata={"cost": 1.5},
    tags=("a",),
    prev="f" * 32,
)
OTHERS: dict[str, Any] = {
    "run_id": "run-2",
    "seq": 8,
    "id": "0198",
    "frame": "key",
    "saved_at": datetime(2026, 11, 15, 20, 31, tzinfo=UTC),
    "name": "n",
    "scope": "s",
    "parent": "p",
    "base_seq": 6,
    "key_seq": 5,
    "step": 1,
    "node": "x",
    "kind": "final",
    "status": "failed",
    "metadata": {"cost": 2.5},
    "tags": ("b",),
    "door": Door("graph"),
    "fingerprint": "f",
    "schema": 1,
    "size": 1,
    "epoch": 1,
    "format": 2,
    "prev": "e" * 32,
}
COMPUTED = {"body", "stored", "digest"}


def encrypted(plaintext: bytes = SECRET, header: Header = HEADER, key: bytes = DATA_KEY) -> bytes:
    return frame.encrypt_body(key, os.urandom(12), plaintext, header)


def refusal(body: bytes, header: Header = HEADER, key: bytes = DATA_KEY) -> CorruptError:
    with pytest.raises(CorruptError) as caught:
        frame.decrypt_body(key, body, header)
    assert (caught.value.run_id, caught.value.seq) == (header.run_id, header.seq)
    return caught.value


def other_header(**changes: Any) -> Header:
    return msgspec.structs.replace(HEADER, **changes)


# compression

json_objects = st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text()))


@given(json_objects, st.sampled_from([None, *frame.METHODS]), st.integers(1, 200))
def test_what_was_compressed_comes_back(value: dict[str, Any], method: str, times: int) -> None:
    text = json.dumps({"a": [value] * times}).encode()
    packed = frame.compress(text, method)
    assert len(packed) <= len(text)
    assert frame.decompress(packed) == text


@pytest.mark.parametrize("method", frame.METHODS)
def test_compression_is_found_by_magic_and_is_the_same_each_time(method: str) -> None:
    text = b'{"a":"' + b"again " * 1000 + b'"}'
    packed = frame.compress(text, method)
    assert len(packed) * 20 < len(text)
    assert packed.startswith(b"\x1f\x8b" if method == "gzip" else b"\x28\xb5\x2f\xfd")
    assert packed == frame.compress(text, method)
    if method == "gzip":
        assert packed[4:8] == bytes(4), "the time of compression is in it"


@pytest.mark.parametrize("method", frame.METHODS)
@pytest.mark.parametrize("text", [b"", b"{}", b'{"a":"' + os.urandom(4000) + b'"}'])
def test_data_that_does_not_shrink_is_left_as_it_is(method: str, text: bytes) -> None:
    assert frame.compress(text, method) == text
    assert frame.decompress(text) == text


def test_unknown_compression_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'lz4'.*gzip, zstd"):
        frame.compress(b"{}", "lz4")


@pytest.mark.parametrize("text", [b"[1]", b"\x1f\x8b{", b"\x28\xb5\x2f\xfd{", b"SHE1{", b" {}"])
def test_a_body_that_would_not_come_back_is_refused(text: bytes) -> None:
    with pytest.raises(EncodeError):
        frame.compress(text, None)


def test_what_could_not_be_read_again_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "BODY_LIMIT", 100)
    with pytest.raises(EncodeError, match="101 bytes"):
        frame.compress(b"{" + b" " * 100, "zstd")


@pytest.mark.parametrize("method", [None, *frame.METHODS])
def test_the_limit_holds_to_the_byte(method: str | None) -> None:
    text = b'{"a":"' + b"x" * 10_000 + b'"}'
    packed = frame.compress(text, method)
    assert frame.decompress(packed, limit=len(text)) == text
    with pytest.raises(DataError, match="larger") as caught:
        frame.decompress(packed, limit=len(text) - 1)
    assert caught.value.size == len(text)


@pytest.mark.parametrize("method", frame.METHODS)
def test_a_compressed_body_cut_anywhere_is_refused(method: str) -> None:
    packed = frame.compress(b'{"a":"' + b"again and again " * 40 + b'"}', method)
    for length in range(1, len(packed)):
        with pytest.raises(DataError):
            frame.decompress(packed[:length])


@pytest.mark.parametrize("method", frame.METHODS)
def test_nothing_may_follow_a_compressed_body(method: str) -> None:
    packed = frame.compress(b'{"a":"' + b"again " * 60 + b'"}', method)
    for tail in (b"x" * 8, packed):
        with pytest.raises(CorruptError):
            frame.decompress(packed + tail)


@given(
    st.sampled_from([b"", b"{", b"\x1f\x8b", b"\x1f\x8b\x08\0\0\0\0\0\0\3", b"\x28\xb5\x2f\xfd"]),
    st.binary(max_size=300),
)
def test_arbitrary_bytes_give_text_or_a_data_error(start: bytes, rest: bytes) -> None:
    with suppress(DataError):
        assert len(frame.decompress(start + rest, limit=1 << 20)) <= 1 << 20


@pytest.mark.parametrize("method", frame.METHODS)
def test_a_flipped_bit_in_a_compressed_body_is_no_other_error(method: str) -> None:
    text = b'{"a":"' + b"again and again " * 40 + b'"}'
    packed = frame.compress(text, method)
    refused = 0
    for bit in range(len(packed) * 8):
        altered = bytearray(packed)
        altered[bit // 8] ^= 1 << bit % 8
        try:
            assert len(frame.decompress(bytes(altered), limit=len(text))) <= len(text)
        except DataError:
            refused += 1
    assert refused > len(packed)


def test_a_gzip_body_that_holds_more_than_it_says_is_refused() -> None:
    with pytest.raises(CorruptError, match="more than it says"):
        frame.decompress(gzip_bomb(MIB, MIB // 2))


def test_an_encrypted_body_read_without_a_key_says_that_it_is_encrypted() -> None:
    with pytest.raises(WrongKeyError, match="SUREHOLD_ENCRYPTION_KEY"):
        frame.decompress(encrypted())


def test_threads_compress_side_by_side() -> None:
    texts = [json.dumps({"a": [n] * 5000}).encode() for n in range(64)]
    with ThreadPoolExecutor(8) as pool:
        packed = list(pool.map(lambda text: frame.compress(text, "zstd"), texts))
        assert list(pool.map(frame.decompress, packed)) == texts


# bombs

MIB = 1 << 20
RLE = 1 << 17


def gzip_bomb(size: int, says: int) -> bytes:
    """A gzip body of *size* zeros in one member, a thousandth as large, that says *says*."""
    pack = zlib.compressobj(9, wbits=-15)
    block = pack.compress(bytes(MIB)) + pack.flush(zlib.Z_FULL_FLUSH)
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return head + block * (size // MIB) + b"\x03\0" + bytes(4) + struct.pack("<I", says % 2**32)


def zstd_bomb(size: int, says: int | None, *, window_log: int = 20) -> bytes:
    """A zstd frame of *size* equal bytes, 32,000 times smaller, that says *says*."""
    blocks = [
        ((RLE << 3) | 2 | (at + RLE >= size)).to_bytes(3, "little") + b"{"
        for at in range(0, size, RLE)
    ]
    sizes = b"" if says is None else struct.pack("<Q", says)
    head = bytes([0 if says is None else 0xC0, (window_log - 10) << 3])
    return b"\x28\xb5\x2f\xfd" + head + sizes + b"".join(blocks)


def zstd_single_segment(size: int) -> bytes:
    return b"\x28\xb5\x2f\xfd\xe0" + zstd_bomb(size, size)[6:]


BOMBS = {
    "gzip that says it": gzip_bomb(3 << 30, 3 << 30),
    "gzip that says less": gzip_bomb(4 << 30, 32 * MIB - 1),
    "gzip that says its size modulo 2**32": gzip_bomb((4 << 30) + MIB, MIB),
    "zstd that says it": zstd_bomb(4 << 30, 4 << 30),
    "zstd that says nothing": zstd_bomb(4 << 30, None),
    "zstd that says less": zstd_bomb(4 << 30, 32 * MIB - 1),
    "zstd that says none": zstd_bomb(4 << 30, 0),
    "zstd with a window of 2 GiB, cut": zstd_bomb(64 * MIB, 32 * MIB, window_log=31)[:-1],
    "zstd in one segment": zstd_single_segment(4 << 30),
}

CHILD = """
import sys, time
from surehold.core.records import frame as frame
from surehold.errors import DataError
import zstandard
body = sys.stdin.buffer.read()
began = time.process_time()
try:
    frame.decompress(body, limit=32 << 20)
    outcome = "opened"
except DataError as error:
    outcome = type(error).__name__
seconds = time.process_time() - began
# Not ru_maxrss: a child inherits that from the process that started it.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(outcome, seconds, peak)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_a_second_and_128_mib(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=BOMBS[name],
        capture_output=True,
        check=True,
        timeout=500,
    )
    outcome, seconds, kib = done.stdout.split()
    print(f"{name}: {len(BOMBS[name]):,} bytes, {float(seconds):.3f} s, {int(kib) // 1024} MiB")
    assert outcome in (b"CorruptError", b"DataError")
    assert float(seconds) < 1
    assert int(kib) < 128 * 1024


def test_the_bombs_would_go_off() -> None:
    assert zlib.decompress(gzip_bomb(MIB, MIB)[10:-8], wbits=-15) == bytes(MIB)
    assert frame.decompress(zstd_bomb(MIB, MIB)) == b"{" * MIB


# encryption


@given(st.binary(max_size=2000), st.binary(min_size=32, max_size=32))
def test_what_was_encrypted_comes_back(plaintext: bytes, key: bytes) -> None:
    body = encrypted(plaintext, key=key)
    assert frame.is_encrypted(body)
    assert frame.decrypt_body(key, body, HEADER) == plaintext
    assert len(plaintext) < 8 or plaintext not in body


@pytest.mark.parametrize("metadata", [{}, {"cost": 1e22, "big": 2**70}, {1: "a", "1": "b"}])
def test_a_sealed_record_opens_with_the_header_that_was_read(metadata: dict[Any, Any]) -> None:
    header = other_header(metadata=metadata, prev="9" * 32)
    record = seal(header, encrypted(header=header), prev="9" * 32)
    read = open_record(record.text, record.header.digest, record.body)
    assert frame.decrypt_body(DATA_KEY, read.body, read.header) == SECRET


def test_the_same_text_never_looks_the_same_twice() -> None:
    assert len({encrypted() for _ in range(100)}) == 100


def test_every_flipped_bit_is_detected() -> None:
    body = encrypted(b'{"a":1}')
    reasons = set()
    for bit in range(len(body) * 8):
        altered = bytearray(body)
        altered[bit // 8] ^= 1 << bit % 8
        reasons.add(refusal(bytes(altered)).reason)
    assert reasons == {"altered", "moved"}


def test_a_body_cut_anywhere_is_detected() -> None:
    body = encrypted(b'{"a":1}')
    sealed = other_header(stored=len(body))
    for length in range(len(body)):
        assert refusal(body[:length], sealed).reason == "truncated"
        assert refusal(body[:length]).reason in ("truncated", "altered")


def test_bytes_added_to_a_body_are_detected() -> None:
    assert refusal(encrypted() + b"\0").reason == "altered"


@pytest.mark.parametrize("method", [None, *frame.METHODS])
def test_a_plain_body_where_an_encrypted_one_is_expected_is_refused(method: str | None) -> None:
    plain = frame.compress(b'{"a":"' + b"again " * 100 + b'"}', method)
    error = refusal(plain)
    assert error.reason == "plain"
    assert "not encrypted" in str(error)


def test_a_body_moved_to_another_record_of_its_run_says_where_it_belongs() -> None:
    first, second = HEADER, other_header(seq=8, id="0198")
    error = refusal(encrypted(header=first), second)
    assert error.reason == "moved"
    assert "record 7" in str(error) and "of record 8" in str(error)


def test_a_body_moved_to_another_run_is_refused() -> None:
    there = other_header(run_id="run-2")
    error = refusal(encrypted(), there, key=b"e" * 32)
    assert error.reason == "moved"
    assert "moved here, or altered" in str(error), "without its key, no more can be known"
    assert refusal(encrypted(), there).reason == "replayed", "a data key shared by two runs"


def test_an_older_body_put_back_under_its_seq_is_refused() -> None:
    older = encrypted(header=other_header(prev="0" * 32))
    assert refusal(older).reason == "replayed"


def test_the_whole_header_is_bound_to_the_body() -> None:
    assert set(OTHERS) | COMPUTED == set(Header.__struct_fields__), "a new field needs a value here"
    body = encrypted()
    for field, value in OTHERS.items():
        assert refusal(body, other_header(**{field: value})).reason in ("moved", "replayed")
    sealed = other_header(body="b" * 32, stored=len(body), digest="d" * 32)
    assert frame.decrypt_body(DATA_KEY, body, sealed) == SECRET


def test_another_data_key_does_not_open_a_body() -> None:
    assert "another data key" in str(refusal(encrypted(), key=b"e" * 32))


@pytest.mark.parametrize("size", [0, 11, 13, 16])
def test_a_nonce_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="12 bytes"):
        frame.encrypt_body(DATA_KEY, bytes(size), SECRET, HEADER)
    with pytest.raises(UsageError, match="12 bytes"):
        frame.wrap_key(DATA_KEY, KEY, run_id="r", nonce=bytes(size))


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="32 bytes"):
        frame.encrypt_body(bytes(size), NONCE, SECRET, HEADER)
    with pytest.raises(UsageError, match="32 bytes"):
        frame.wrap_key(bytes(size), KEY, run_id="r", nonce=NONCE)


def test_without_the_extra_the_error_has_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    body, note = encrypted(), frame.wrap_key(DATA_KEY, KEY, run_id="r", nonce=NONCE)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    calls: list[Callable[[], object]] = [
        lambda: frame.encrypt_body(DATA_KEY, NONCE, SECRET, HEADER),
        lambda: frame.decrypt_body(DATA_KEY, body, HEADER),
        lambda: frame.unwrap_key(note, [KEY], run_id="r"),
    ]
    for call in calls:
        with pytest.raises(MissingExtraError, match=r"pip install 'surehold\[crypto\]'"):
            call()


# the wrapped data key


def test_a_wrapped_key_comes_back_and_is_json() -> None:
    note = frame.wrap_key(DATA_KEY, KEY, run_id="r", nonce=NONCE)
    assert frame.unwrap_key(json.loads(json.dumps(note)), [b"x" * 32, KEY], run_id="r") == DATA_KEY


def test_a_wrong_key_names_the_ids_and_no_key() -> None:
    note = frame.wrap_key(DATA_KEY, KEY, run_id="nightly", nonce=NONCE)
    with pytest.raises(WrongKeyError, match="nightly") as caught:
        frame.unwrap_key(note, [b"x" * 32, b"y" * 32], run_id="nightly")
    assert caught.value.wanted == frame.key_id(KEY) == note["key"]
    assert caught.value.at_hand == [frame.key_id(b"x" * 32), frame.key_id(b"y" * 32)]
    assert all(name in str(caught.value) for name in (note["key"], *caught.value.at_hand))
    with pytest.raises(WrongKeyError, match="at hand: none"):
        frame.unwrap_key(note, [], run_id="nightly")


def test_a_note_of_another_run_is_refused() -> None:
    note = frame.wrap_key(DATA_KEY, KEY, run_id="r", nonce=NONCE)
    with pytest.raises(CorruptError, match="another run"):
        frame.unwrap_key(note, [KEY], run_id="s")


@pytest.mark.parametrize("field", ["wrapped", "check"])
def test_an_altered_note_is_refused_at_every_character(field: str) -> None:
    note = frame.wrap_key(DATA_KEY, KEY, run_id="r", nonce=NONCE)
    text = str(note[field])
    for at in range(len(text)):
        letter = "A" if text[at] != "A" else "B"
        with pytest.raises(CorruptError):
            frame.unwrap_key(note | {field: text[:at] + letter + text[at + 1 :]}, [KEY], run_id="r")
        with pytest.raises(CorruptError):
            frame.unwrap_key(note | {field: text[:at]}, [KEY], run_id="r")


HOSTILE: list[Any] = [
    {"v": 2}, {"v": "1"}, {"alg": "none"}, {"alg": 1}, {"key": None}, {"wrapped": "\u20ac"},
    {"wrapped": "="}, {"check": "\u20ac"}, {"check": ""}, {"kdf": 1},
    {"kdf": {"n": 1 << 30, "r": 8, "p": 1, "salt": "AAAAAAAAAAA="}},
    {"kdf": {"n": 1 << 14, "r": 9999, "p": 1, "salt": "AAAAAAAAAAA="}},
    {"kdf": {"n": 1 << 14, "r": 8, "p": 9999, "salt": "AAAAAAAAAAA="}},
    {"kdf": {"n": 1000, "r": 8, "p": 1, "salt": "AAAAAAAAAAA="}},
    {"kdf": {"n": 1 << 14, "r": 8, "p": 1, "salt": "not base64!"}},
]  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE)
def test_a_hostile_note_is_corrupt_and_nothing_worse(change: dict[str, Any]) -> None:
    note = frame.wrap_key(DATA_KEY, KEY, run_id="r", nonce=NONCE)
    with pytest.raises(CorruptError):
        frame.unwrap_key(note | change, [KEY], run_id="r")


@pytest.mark.parametrize("note", [{}, [], None, "note", 1])
def test_what_is_no_note_at_all_is_corrupt(note: Any) -> None:
    with pytest.raises(CorruptError):
        frame.unwrap_key(note, [KEY], run_id="r")


def test_no_error_shows_a_key_or_the_text() -> None:
    note = frame.wrap_key(DATA_KEY, KEY, run_id="r", nonce=NONCE)
    errors: list[Exception] = [refusal(encrypted(), other_header(seq=9))]
    for call in (
        lambda: frame.unwrap_key(note, [b"x" * 32], run_id="r"),
        lambda: frame.unwrap_key(note, [KEY], run_id="s"),
        lambda: frame.encrypt_body(DATA_KEY[:31], NONCE, SECRET, HEADER),
    ):
        with pytest.raises(Exception) as caught:
            call()
        errors.append(caught.value)
    for error in errors:
        shown = f"{error} {error!r} {error.__dict__} {error.__cause__!r}"
        for secret in ("d" * 8, "k" * 8, "x" * 8, "4929", DATA_KEY.hex(), KEY.hex()):
            assert secret not in shown


# speed


@pytest.mark.figures
def test_a_megabyte_is_framed_within_a_few_times_its_json_encoding() -> None:
    chance = random.Random(1)
    words = ["".join(chance.choices(string.ascii_lowercase, k=6)) for _ in range(3000)]
    state = {
        "messages": [
            {"role": "user", "content": " ".join(chance.choices(words, k=40))} for _ in range(3300)
        ]
    }
    text = msgspec.json.encode({"state": state})
    assert len(text) > 1_000_000
    zstd, sealed = frame.compress(text, "zstd"), encrypted(text)
    parts: dict[str, tuple[float, Callable[[], object]]] = {
        "zstd": (40, lambda: frame.compress(text, "zstd")),
        "unzstd": (10, lambda: frame.decompress(zstd)),
        "gzip": (120, lambda: frame.compress(text, "gzip")),
        "encrypt": (4, lambda: encrypted(text)),
        "decrypt": (4, lambda: frame.decrypt_body(DATA_KEY, sealed, HEADER)),
    }
    for name, (most, call) in parts.items():
        ratio = statistics.median(
            timed(call) / timed(lambda: msgspec.json.encode({"state": state})) for _ in range(9)
        )
        print(f"{name}: {ratio:.1f} times the encoding")
        assert ratio < most, name


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
