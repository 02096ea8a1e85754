"""A chain tells whether records follow each other, and keeps the gaps between them."""

from __future__ import annotations

from surehold.core.records import Chain, Gap, Record, chained, read_prune_note
from surehold.testing.journal import JournalWriter


def records(count: int) -> list[Record]:
    writer = JournalWriter()
    return [writer.record() for _ in range(count)]


def test_records_in_order_follow_each_other() -> None:
    chain = Chain()
    assert [chain.add(record.header) for record in records(3)] == ["", "", ""]
    assert (chain.seq, chain.gaps) == (3, [])


def test_a_chain_can_begin_after_a_record() -> None:
    one, two = records(2)
    assert Chain(1, one.header.digest).add(two.header) == ""
    assert Chain(1, "other").add(two.header) == "does not follow the record before it"


def test_a_record_out_of_order_is_not_moved_to() -> None:
    one, two = records(2)
    chain = Chain()
    chain.add(one.header)
    chain.add(two.header)
    assert chain.add(one.header) == "is out of order"
    assert chain.seq == 2


def test_a_gap_is_kept_until_a_prune_explains_it() -> None:
    made = records(5)
    chain = Chain()
    assert [chain.add(record.header) for record in (made[0], made[3], made[4])] == ["", "", ""]
    digest = made[2].header.digest
    assert chain.gaps == [Gap(2, 3, digest)]
    assert chain.unexplained({3: digest}) == []
    assert chain.unexplained({3: "other"}) == chain.gaps
    note = b'{"erased":[{"first":2,"last":3,"digest":"%b"}]}' % digest.encode()
    assert read_prune_note(note) == chain.gaps


def test_what_does_not_follow_is_left_out() -> None:
    made, other = records(4), JournalWriter(digest="x", seq=1).record()
    assert chained([made[0], other, made[1], made[3]]) == [made[0], made[1], made[3]]
    assert chained([made[1], made[1], made[0]]) == [made[1]]
