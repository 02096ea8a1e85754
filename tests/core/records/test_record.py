"""A record proves itself, its body and its place, and is never written unreadable."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.values import plain_values

from surehold.core.records.record import (
    FORMAT,
    KINDS,
    STATUSES,
    Header,
    Record,
    digest_of,
    open_header,
    open_record,
    read_status,
    seal,
)
from surehold.errors import CorruptError, EncodeError

NOW = datetime(2026, 11, 15, 20, 21, 19, tzinfo=UTC)
BODY = b'{"state":{"a":1}}'

headers = st.builds(
    Header,
    run_id=st.text(min_size=1, max_size=5),
    seq=st.integers(1, 1 << 40),
    id=st.uuids().map(str),
    frame=st.sampled_from(["key", "delta", "note"]),
    saved_at=st.datetimes(timezones=st.just(UTC)),
    name=st.text(max_size=3),
    scope=st.text(max_size=3),
    parent=st.none() | st.text(max_size=3),
    base_seq=st.none() | st.integers(1, 99),
    key_seq=st.none() | st.integers(1, 99),
    step=st.integers(0, (1 << 63) - 1),
    node=st.none() | st.text(max_size=3),
    kind=st.sampled_from(KINDS) | st.text(max_size=3),
    status=st.sampled_from(STATUSES),
    metadata=st.dictionaries(st.text(max_size=3), plain_values, max_size=2),
    tags=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    fingerprint=st.none() | st.text(max_size=3),
    schema=st.integers(0, 9),
    size=st.integers(0, 99),
    epoch=st.integers(0, 99),
)


def header(**fields: Any) -> Header:
    return Header(**{"run_id": "r", "seq": 1, "id": "a", "frame": "key", "saved_at": NOW} | fields)


@given(headers, st.binary(max_size=50), st.text("0123456789abcdef", max_size=32))
def test_a_sealed_record_opens_as_it_was(given_in: Header, body: bytes, prev: str) -> None:
    record = seal(given_in, body, prev=prev)
    assert open_record(record.text, record.header.digest, body) == record
    assert open_header(record.text, record.header.digest) == record.header
    assert record.header.prev == prev
    assert record.header.stored == len(body)
    changed = {"prev", "body", "stored", "digest"}
    for name in Header.__struct_fields__:
        if name not in changed:
            assert getattr(record.header, name) == getattr(given_in, name)


def test_a_header_is_json_that_people_can_read() -> None:
    record = seal(header(step=3, tags=("x",)), BODY, prev="")
    assert msgspec.json.decode(record.text) == {
        "run_id": "r",
        "seq": 1,
        "id": "a",
        "frame": "key",
        "saved_at": "2026-11-15T20:21:19Z",
        "step": 3,
        "tags": ["x"],
        "stored": len(BODY),
        "body": digest_of(BODY),
    }


def flipped(data: bytes) -> list[bytes]:
    return [
        data[:index] + bytes([data[index] ^ 1 << bit]) + data[index + 1 :]
        for index in range(len(data))
        for bit in range(8)
    ]


def test_every_flipped_bit_is_found() -> None:
    record = seal(header(), BODY, prev="")
    digest = record.header.digest
    for text in flipped(record.text):
        with pytest.raises(CorruptError, match="does not match its digest"):
            open_header(text, digest)
    for body in flipped(BODY):
        with pytest.raises(CorruptError, match="the body of record 1 of run 'r'") as caught:
            open_record(record.text, digest, body)
        assert (caught.value.run_id, caught.value.seq, caught.value.id) == ("r", 1, "a")
    with pytest.raises(CorruptError):
        open_record(record.text, digest_of(b"another"), BODY)


def test_a_record_cannot_follow_another_than_it_was_sealed_after() -> None:
    first, other = (seal(header(id=name), BODY, prev="") for name in "ab")
    second = seal(header(seq=2), BODY, prev=first.header.digest)
    assert second.header.prev == first.header.digest != other.header.digest
    assert seal(header(seq=2), BODY, prev=other.header.digest).header.digest != second.header.digest


def test_the_digest_covers_the_body() -> None:
    assert (
        seal(header(), b"a", prev="").header.digest != seal(header(), b"b", prev="").header.digest
    )


def with_text(text: bytes) -> tuple[bytes, str]:
    return text, digest_of(text)


def test_a_header_of_a_newer_format_is_refused_with_what_to_do() -> None:
    newer = seal(header(format=FORMAT + 1), BODY, prev="")
    with pytest.raises(CorruptError, match="reads up to") as caught:
        open_header(newer.text, newer.header.digest)
    assert caught.value.hint == "update surehold"


def test_fields_that_a_later_version_adds_are_passed_over() -> None:
    text, digest = with_text(seal(header(), BODY, prev="").text[:-1] + b',"later":[1]}')
    assert open_record(text, digest, BODY).text == text
    assert open_header(text, digest).run_id == "r"


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"{}", b'{"run_id":5}', b"[" * 10_000, b'"\xff"', b"null"]
)
def test_a_header_that_cannot_be_read_is_corrupt_though_its_digest_fits(text: bytes) -> None:
    with pytest.raises(CorruptError, match="cannot be read"):
        open_header(*with_text(text))


@pytest.mark.parametrize(
    "fields",
    [
        {"status": None},
        {"status": 5},
        {"step": "3"},
        {"step": 1.5},
        {"step": -1},
        {"step": 1 << 63},
        {"node": "\ud800"},
        {"run_id": 5},
        {"kind": None},
        {"tags": "one"},
        {"tags": (1,)},
        {"metadata": {"a": object()}},
        {"metadata": {"a": "\ud800"}},
        {"metadata": [1]},
        {"frame": "other"},
        {"saved_at": "now"},
    ],
)
def test_a_header_that_could_not_be_read_again_is_never_sealed(fields: dict[str, Any]) -> None:
    with pytest.raises(EncodeError, match="has a header that cannot be stored"):
        seal(header(**fields), BODY, prev="")


def test_a_digest_is_128_bits_of_sha_256() -> None:
    assert digest_of(b"") == "e3b0c44298fc1c149afbf4c8996fb924"


def test_statuses_and_kinds() -> None:
    assert len({*STATUSES}) == len(STATUSES) == 10
    assert [read_status(status) for status in STATUSES] == [*STATUSES]
    assert read_status("in_progress") == "running"
    assert read_status("error") == "failed"
    assert read_status("something else") == "something else"
    assert {"routine", "pre_operation", "recovery", "interrupt", "final", "manual", "fork"} == {
        *KINDS
    }


def test_records_and_headers_are_frozen() -> None:
    record = seal(header(), BODY, prev="")
    with pytest.raises(AttributeError):
        record.header.seq = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        record.body = b""  # type: ignore[misc]
    assert isinstance(record, Record)


def test_a_header_that_is_no_utf8_is_corrupt_even_under_a_digest_that_fits() -> None:
    sound = seal(header(), b"{}", prev="").text
    text = sound.replace(b'"run_id":"', b'"run_id":"\xa7', 1)
    with pytest.raises(CorruptError):
        open_header(text, digest_of(text))


def test_what_this_process_sealed_or_opened_is_not_hashed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sealed = seal(Header(run_id="r", seq=1, id="a", frame="key", saved_at=NOW), BODY, prev="")
    opened = open_record(sealed.text, sealed.header.digest, sealed.body)
    monkeypatch.setattr("surehold.core.records.record.digest_of", lambda data: "0" * 32)
    assert sealed.verified() is sealed
    assert opened.verified() is opened


@pytest.mark.parametrize(
    "change", [{"body": b"{}"}, {"text": b"{}"}, {"header": "other"}], ids=lambda c: next(iter(c))
)
def test_a_record_with_a_part_replaced_is_checked(change: dict[str, Any]) -> None:
    header = Header(run_id="r", seq=1, id="a", frame="key", saved_at=NOW)
    sealed = seal(header, BODY, prev="")
    if "header" in change:
        change = {"header": msgspec.structs.replace(sealed.header, digest="0" * 32)}
    with pytest.raises(CorruptError):
        msgspec.structs.replace(sealed, **change).verified()
    with pytest.raises(CorruptError):
        Record(sealed.header, sealed.text, b"other").verified()


def test_a_sealed_header_shares_nothing_with_what_it_was_made_from() -> None:
    metadata = {"list": [1]}
    header = Header(run_id="r", seq=1, id="a", frame="key", saved_at=NOW, metadata=metadata)
    sealed = seal(header, BODY, prev="")
    metadata["list"].append(2)
    assert sealed.header.metadata == {"list": [1]}
