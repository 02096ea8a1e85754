"""Tables and lines for people, JSON for programs, no raw escape sequences.

Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import IO, Any, NamedTuple

from surehold.core.plain import plain

_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
_IN_JSON = re.compile(
    "[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
_GAP = "  "
_LEAST = 10
"""A column that gives way keeps at least this many characters."""
_PADDED = 60
"""Without a width, one long cell makes its column no wider than this, and stands out of it."""


def safe_json(document: Any, *, indent: bool = False) -> str:
    """JSON text in which every control character is escaped."""
    import msgspec

    text = msgspec.json.encode(document)
    if indent:
        text = msgspec.json.format(text, indent=2)
    return _IN_JSON.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text.decode())


class Cell(NamedTuple):
    """Some text and its style, for terminals with colours."""

    text: object
    style: str = ""


class Column(NamedTuple):
    """The head of a column, and the *cell* that it makes of an item of `Table.of`.

    Without one, the cell is the item's attribute of that title.

    If a line is too long, columns that *give* way are made narrower, to *enough* characters at
    first, or left out, if they are shown *whole* or hold figures, aligned *right*: those of the
    smallest *rank* first, then the widest.
    """

    title: str
    cell: Callable[[Any], object] | None = None
    right: bool = False
    gives: bool = False
    rank: int = 0
    whole: bool = False
    enough: int = _LEAST


class Table(NamedTuple):
    """Rows under heads; nothing without rows. A cell is a `Cell`, or has a text."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]

    @classmethod
    def of(cls, items: Iterable[Any], *columns: Column) -> Table:
        """A row for each item."""
        makers = [column.cell or attrgetter(column.title) for column in columns]
        return cls(columns, [[make(one) for make in makers] for one in items])


class Line(NamedTuple):
    """Cells of one line, with nothing between them."""

    cells: tuple[object, ...]

    @classmethod
    def of(cls, *cells: object) -> Line:
        return cls(cells)


class Terminal:
    """The streams that a command reads and writes."""

    def __init__(
        self,
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
        stdin: IO[str] | None = None,
        *,
        environ: Mapping[str, str],
        color: bool | None = None,
        width: int | None = None,
    ) -> None:
        self.stdout = stdout if stdout is not None else sys.stdout
        self.stderr = stderr if stderr is not None else sys.stderr
        self.stdin = stdin if stdin is not None else sys.stdin
        self.environ = environ
        self._color = color
        self._width = width

    @property
    def asks(self) -> bool:
        """True if a person can be asked."""
        return _is_terminal(self.stdin) and _is_terminal(self.stderr)

    def no_color(self) -> None:
        """Show no colours, whatever the environment says."""
        self._color = False

    def has_color(self, stream: IO[str]) -> bool:
        """Return True if *stream* shows colours, after NO_COLOR, FORCE_COLOR and TERM."""
        if self._color is not None:
            return self._color
        if self.environ.get("NO_COLOR"):
            return False
        if self.environ.get("FORCE_COLOR"):
            return True
        return _is_terminal(stream) and self.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int | None:
        """Columns of stdout; None if it is not a terminal, and lines may have any length."""
        if self._width is not None:
            return self._width
        if not _is_terminal(self.stdout):
            return None
        return shutil.get_terminal_size().columns

    def show(self, blocks: Iterable[object]) -> None:
        """Write blocks to stdout: tables, lines, or text."""
        color, width = self.has_color(self.stdout), self.width
        for block in blocks:
            for line in _rendered(block, color, width):
                self.stdout.write(line + "\n")
        self.stdout.flush()

    def say(self, *cells: object) -> None:
        """Write a line to stderr."""
        for line in _rendered(Line(cells), self.has_color(self.stderr), None):
            self.stderr.write(line + "\n")
        self.stderr.flush()


def _is_terminal(stream: IO[str]) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # it is closed
        return False


def _rendered(block: object, color: bool, width: int | None) -> Iterable[str]:
    match block:
        case Table():
            return _table(block, color, width)
        case Line():
            return [_line(block, color, width)]
        case Cell():
            return [_paint(plain(block.text, lines=True), block.style, color)]
    return [plain(block, lines=True)]


def _line(line: Line, color: bool, width: int | None) -> str:
    parts: list[str] = []
    left = width
    for cell in line.cells:
        text, style = _text_of(cell)
        if left is not None:
            text = _cut(text, left)
            left -= width_of(text)
        parts.append(_paint(text, style, color))
    return "".join(parts)


def _table(table: Table, color: bool, width: int | None) -> Iterable[str]:
    cells = [[_text_of(cell) for cell in row] for row in table.rows]
    heads = [column.title for column in table.columns]
    widths = [
        max([width_of(head), *(width_of(row[at][0]) for row in cells)])
        for at, head in enumerate(heads)
    ]
    if width is not None:
        widths = _fitted(widths, table.columns, width)
    else:
        widths = [
            min(wide, _PADDED) if column.gives else wide
            for wide, column in zip(widths, table.columns, strict=True)
        ]
    titles = [(head.upper(), "dim") for head in heads]
    for row in [titles, *cells] if cells else ():
        yield _row(row, table.columns, widths, color, cut=width is not None)


def _fitted(full: list[int], columns: Sequence[Column], width: int) -> list[int]:
    """The widths with which a row fits; a column of width 0 is left out."""
    widths = [*full]
    giving = [at for at, column in enumerate(columns) if column.gives]
    giving.sort(key=lambda at: (columns[at].rank, -full[at]))
    for at, least in [
        *((at, columns[at].enough) for at in giving),
        *((at, _LEAST) for at in giving),
    ]:
        if widths[at] and (over := _over(widths, width)) > 0:
            left_out = columns[at].right or columns[at].whole
            widths[at] = 0 if left_out else max(widths[at] - over, min(full[at], least))
    last = len(widths) - 1
    while _over(widths, width) > 0 and last > 0:  # too narrow even so
        widths[last] = 0
        last -= 1
    widths[0] = min(widths[0], max(width, 1))
    for at in reversed(giving):  # a column that was left out may have made room
        if widths[at]:
            widths[at] += min(full[at] - widths[at], max(-_over(widths, width), 0))
    return widths


def _over(widths: list[int], width: int) -> int:
    """The characters by which a row is too long."""
    shown = [one for one in widths if one]
    return sum(shown) + len(_GAP) * (len(shown) - 1) - width


def _row(
    row: Sequence[tuple[str, str]],
    columns: Sequence[Column],
    widths: list[int],
    color: bool,
    *,
    cut: bool,
) -> str:
    parts = []
    for (text, style), column, width in zip(row, columns, widths, strict=True):
        if not width:
            continue
        shown = _cut(text, width) if cut else text
        pad = " " * (width - width_of(shown))
        painted = _paint(shown, style, color)
        parts.append(pad + painted if column.right else painted + pad)
    return _GAP.join(parts).rstrip()


def _text_of(cell: object) -> tuple[str, str]:
    if isinstance(cell, Cell):
        return plain(cell.text), cell.style
    return plain(cell), ""


def _paint(text: str, style: str, color: bool) -> str:
    if not color or not style or not text:
        return text
    codes = ";".join(_STYLES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


def width_of(text: str) -> int:
    """The columns of a terminal that *text* takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(mark) else 1 + (east_asian_width(mark) in "WF") for mark in text)


def _cut(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    text = text[: max(width - 1, 0)]
    while width_of(text) > width - 1 > 0:
        text = text[:-1]
    return text + "…" if width > 0 else ""
