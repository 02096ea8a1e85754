"""Names that sort, and names that cannot lead out of a directory."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from surehold.core.records.ids import check_run_id, medium_name
from surehold.core.records.record import new_id
from surehold.errors import UsageError

times = st.integers(0, (1 << 48) * 1_000_000 - 1)
entropy = st.binary(min_size=8, max_size=8)


@given(times, entropy)
def test_an_id_is_a_uuid_of_version_7(unix_ns: int, random: bytes) -> None:
    made = UUID(new_id(unix_ns, random))
    assert str(made) == new_id(unix_ns, random)
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert made.int >> 80 == unix_ns // 1_000_000


@given(times, times, entropy, entropy)
def test_ids_sort_by_time_to_a_quarter_of_a_microsecond(a: int, b: int, x: bytes, y: bytes) -> None:
    if b - a >= 250:
        assert new_id(a, x) < new_id(b, y)


@given(times, entropy, entropy)
def test_ids_of_one_moment_differ_by_their_entropy(now: int, x: bytes, y: bytes) -> None:
    same = int.from_bytes(x) & (1 << 62) - 1 == int.from_bytes(y) & (1 << 62) - 1
    assert (new_id(now, x) == new_id(now, y)) is same


@given(st.text(min_size=1, max_size=50).filter(lambda text: "\0" not in text))
def test_a_run_may_have_any_text_for_a_name(name: str) -> None:
    assert check_run_id(name) is name


@pytest.mark.parametrize(
    ("run_id", "why"),
    [
        ("", "is empty"),
        ("a\0b", "NUL"),
        ("\ud800", "not valid Unicode"),
        ("x" * 65_537, "65,537 characters"),
        (None, "must be a string, not NoneType"),
        (5, "must be a string, not int"),
        (b"a", "must be a string, not bytes"),
    ],
)
def test_what_cannot_name_a_run_is_refused_and_why(run_id: Any, why: str) -> None:
    with pytest.raises(UsageError, match=f"run_id .*{why}|run_id {why}"):
        check_run_id(run_id)
    with pytest.raises(UsageError, match=r"^agent_id"):
        check_run_id(run_id, "agent_id")


def test_the_longest_name_is_allowed() -> None:
    assert check_run_id("x" * 65_536)


HARMLESS = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}|=[0-9a-f]{40}")


@given(st.text(st.characters(codec="utf-8"), max_size=120) | st.from_regex(r"[a-z0-9_.-]{1,101}"))
@example("..")
@example("a/b")
@example("agent\n")
@example("CON")
@example("x" * 101)
@example("=d6b96a97")
def test_a_name_on_a_medium_is_always_harmless(name: str) -> None:
    made = medium_name(name)
    assert HARMLESS.fullmatch(made)
    assert made == name or made.startswith("=")
    assert made == medium_name(name)


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_two_names_never_meet_on_a_medium(a: str, b: str) -> None:
    assert (medium_name(a) == medium_name(b)) is (a == b)


def test_names_that_differ_only_in_case_do_not_meet_where_case_does_not_count() -> None:
    assert medium_name("Agent").lower() != medium_name("agent").lower()


@pytest.mark.parametrize("name", ["con", "prn", "aux", "nul", "com1", "lpt9", "com0"])
def test_names_of_devices_are_hashed(name: str) -> None:
    assert medium_name(name).startswith("=")
    assert medium_name(f"{name}x") == f"{name}x"
