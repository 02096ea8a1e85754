"""What the hot path costs, as ratios to what Python and msgspec take for the like."""

from __future__ import annotations

import copy
import timeit
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from surehold.core.state.state import State
from surehold.core.values.codec import encode, take_in
from surehold.core.values.patch import changes, whole

pytestmark = pytest.mark.figures

MESSAGES = [
    {"role": "user", "content": "x" * 900, "n": n, "ok": True, "usage": {"cost": 1.5}}
    for n in range(1000)
]
"""About a megabyte."""


def seconds(act: Callable[[], Any], number: int = 1) -> float:
    """The least of many, which is what the work itself takes."""
    return min(timeit.repeat(act, number=number, repeat=25)) / number


def test_encoding_plain_values_costs_a_few_times_the_bare_encoding() -> None:
    bare = msgspec.json.Encoder().encode
    assert seconds(lambda: encode(MESSAGES)) < 12 * seconds(lambda: bare(MESSAGES))


def test_taking_values_in_costs_less_than_a_deep_copy() -> None:
    assert seconds(lambda: take_in(MESSAGES)) < seconds(lambda: copy.deepcopy(MESSAGES))


def test_what_changed_costs_the_same_whatever_the_length_of_the_list_that_grew() -> None:
    def cost(length: int) -> float:
        state = State.new({"items": list(range(length))})
        _, base = whole(*state.for_saving())
        grown = state.append("items", 1).for_saving()
        return seconds(lambda: changes(base, *grown), number=20)

    assert cost(200_000) < 20 * cost(200)


def test_what_changed_costs_the_same_whatever_else_the_state_holds() -> None:
    def cost(messages: list[Any]) -> float:
        state = State.new({"round": 1, "messages": messages})
        _, base = whole(*state.for_saving())
        later = state.set("round", 2).for_saving()
        return seconds(lambda: changes(base, *later), number=20)

    assert cost(MESSAGES) < 20 * cost([])
