"""What is shown does nothing but show."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surehold.cli.framework.terminal import (
    Cell,
    Column,
    Line,
    Table,
    Terminal,
    plain,
    safe_json,
    width_of,
)

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202egnp\u061c\u2028\r\n\x00\ud800"


def shown(*blocks: object, width: int | None = None, color: bool = False) -> str:
    out = StringIO()
    Terminal(out, out, StringIO(), environ={}, color=color, width=width).show(blocks)
    return out.getvalue()


@given(st.text())
def test_no_control_gets_through(text: str) -> None:
    for made in (plain(text), json.loads(safe_json([plain(text)]))[0]):
        assert made.isprintable() or not any(ord(mark) < 32 for mark in made)
    assert not any(ord(mark) < 32 or 0x7F <= ord(mark) < 0xA0 for mark in plain(text))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_is_the_same_after_it_is_made_safe(text: str) -> None:
    made = safe_json({"text": text}, indent=True)
    assert json.loads(made) == {"text": text}
    assert not any(0x7F <= ord(mark) < 0xA0 or mark in "\x1b\u202e" for mark in made)


def test_a_table_a_line_and_text_are_all_made_harmless() -> None:
    table = Table([Column("a")], [[HOSTILE]])
    made = shown(table, Line.of(HOSTILE), Cell(HOSTILE), HOSTILE)
    assert not set(made) & set("\x1b\x07\x9b\u202e\u061c\u2028\r\x00\ud800")
    assert "\\x1b]0;owned\\x07" in made


def test_columns_line_up_and_numbers_stand_to_the_right() -> None:
    table = Table([Column("run"), Column("steps", right=True)], [["kelp", 7], ["漢字", 1234]])
    assert shown(table) == "RUN   STEPS\nkelp      7\n漢字   1234\n"


def test_a_table_gives_up_the_least_valuable_columns_first() -> None:
    columns = [
        Column("run", gives=True, rank=3),
        Column("where", gives=True, rank=1),
        Column("status"),
        Column("cost", right=True, gives=True, rank=2),
    ]
    table = Table(columns, [["kelp-" + "1" * 15, "w" * 20, "completed", "$12.50"]])
    assert "$12.50" in shown(table, width=52) and "wwww…" in shown(table, width=52)
    assert "$" not in shown(table, width=46) and "1" * 15 in shown(table, width=46)
    for width in range(1, 70):
        lines = shown(table, width=width).splitlines()
        assert max(map(width_of, lines)) <= width
        figures = shown(table, width=width).count("$12.50")
        assert figures == shown(table, width=width).count("$")  # whole, or left out


def test_a_table_fits_the_terminal_by_what_gives_way() -> None:
    table = Table([Column("run"), Column("what", gives=True)], [["kelp", "x" * 200]])
    lines = shown(table, width=40).splitlines()
    assert max(map(width_of, lines)) == 40
    assert lines[1].endswith("…") and lines[1].startswith("kelp  xxx")
    assert "x" * 200 in shown(table)


def test_where_lines_may_be_long_one_long_cell_does_not_make_the_others_long() -> None:
    columns = (Column("node"), Column("what", gives=True), Column("size", right=True))
    rows = [["a", "w" * 500, "9 B"], ["b", "short", "10 B"]]
    head, long, short = shown(Table(columns, rows)).splitlines()
    assert "w" * 500 in long and long.endswith("9 B")
    assert len(head) == len(short) < 100 and short.endswith("10 B")


def test_a_line_is_cut_at_the_edge() -> None:
    assert shown(Line.of(Cell("ab", "red"), "c" * 90), width=10) == "ab" + "c" * 7 + "…\n"


def test_colours_are_for_terminals_that_want_them() -> None:
    assert shown(Cell("kelp", "bold red"), color=True) == "\x1b[1;31mkelp\x1b[0m\n"
    assert shown(Cell("kelp", "bold red")) == "kelp\n"


@pytest.mark.parametrize(
    ("environ", "terminal", "colors"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_the_environment_decides_about_colours(
    environ: dict[str, str], terminal: bool, colors: bool
) -> None:
    class Stream(StringIO):
        def isatty(self) -> bool:
            return terminal

    stream = Stream()
    assert Terminal(stream, stream, stream, environ=environ).has_color(stream) is colors
