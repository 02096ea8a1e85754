"""Ranges of seqs behave like the sets of numbers they stand for, without counting them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from surehold.core.records import (
    Range,
    covers,
    gaps_between,
    merge_ranges,
    ranges_of,
    subtract_ranges,
)

seqs = st.sets(st.integers(1, 40))
ranges = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 8)).map(lambda r: (r[0], r[0] + r[1]))
)


def numbers(found: list[Range]) -> set[int]:
    return {seq for first, last in found for seq in range(first, last + 1)}


@given(seqs)
def test_ranges_hold_just_their_seqs_and_touch_nowhere(wanted: set[int]) -> None:
    found = ranges_of(sorted(wanted))
    assert numbers(found) == wanted
    assert all(a[1] + 1 < b[0] for a, b in pairwise(found))


@given(ranges, ranges)
def test_merging_and_subtracting_are_those_of_sets(one: list[Range], two: list[Range]) -> None:
    assert numbers(merge_ranges(one)) == numbers(one)
    assert numbers(subtract_ranges(one, two)) == numbers(one) - numbers(two)


@given(seqs, st.integers(0, 50))
def test_gaps_are_what_the_seqs_pass_over(wanted: set[int], end: int) -> None:
    until = max([end, *wanted])
    found = gaps_between(sorted(wanted), until=until)
    assert numbers(found) == set(range(1, until + 1)) - wanted
    assert all(covers(found, seq) for seq in numbers(found))


def test_a_range_of_four_billion_costs_nothing() -> None:
    gaps = gaps_between([1, 1 << 32])
    assert subtract_ranges(gaps, [(2, 10)]) == [(11, (1 << 32) - 1)]
    assert covers(gaps, 5, 1 << 31)
