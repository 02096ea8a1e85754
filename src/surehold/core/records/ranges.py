"""Ranges of seqs: pairs of the first and the last, both included."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

Range = tuple[int, int]


def ranges_of(seqs: Iterable[int]) -> list[Range]:
    """The ranges that ascending seqs form.

    >>> ranges_of([1, 2, 3, 7])
    [(1, 3), (7, 7)]
    """
    return merge_ranges((seq, seq) for seq in seqs)


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """The ranges in order, those that touch or overlap joined.

    >>> merge_ranges([(5, 6), (1, 2), (3, 3), (6, 9)])
    [(1, 3), (5, 9)]
    """
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def gaps_between(seqs: Iterable[int], *, after: int = 0, until: int | None = None) -> list[Range]:
    """The ranges that ascending seqs pass over, from *after* on and up to *until*.

    >>> gaps_between([1, 2, 5, 6, 9], until=11)
    [(3, 4), (7, 8), (10, 11)]
    """
    ends = [] if until is None else [until + 1]
    return [(a + 1, b - 1) for a, b in pairwise([after, *seqs, *ends]) if b > a + 1]


def subtract_ranges(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """The parts of *ranges* that lie in none of *taken*, without enumerating them.

    >>> subtract_ranges([(1, 10), (20, 2**40)], [(3, 4), (9, 25)])
    [(1, 2), (5, 8), (26, 1099511627776)]
    """
    holes = merge_ranges(taken)
    left: list[Range] = []
    for first, last in merge_ranges(ranges):
        begin = first
        for start, end in holes:
            if end < begin or start > last:
                continue
            if begin < start:
                left.append((begin, start - 1))
            begin = end + 1
        if begin <= last:
            left.append((begin, last))
    return left


def covers(ranges: Iterable[Range], first: int, last: int | None = None) -> bool:
    """True if one of *ranges* holds *first*, and *last* if given.

    >>> covers([(1, 3), (7, 9)], 8), covers([(1, 3), (7, 9)], 2, 7)
    (True, False)
    """
    end = first if last is None else last
    return any(start <= first and end <= stop for start, stop in ranges)
