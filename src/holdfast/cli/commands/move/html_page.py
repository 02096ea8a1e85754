"""A run as one web page that needs nothing else: timeline, what each step changed, its states.

There is no script in it and nothing is fetched. All that was stored is shown as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.cli.framework import clock, money, plain, size, value_text
from holdfast.core.values import encode

if TYPE_CHECKING:
    from holdfast.checkpoint.inspect import Change, NoteView, TimelineEntry

__all__ = ["Page", "write_page"]

_STATES_BYTES = 20 << 20
"""So much of states goes into a page; of older steps beyond that only the changes do."""
_COLORS = {
    "completed": "ok",
    "failed": "bad",
    "interrupted": "wait",
    "waiting": "wait",
    "running": "run",
}


class Page(NamedTuple):
    """The content of a page."""

    run_id: str
    name: str
    status: str
    moments: list[TimelineEntry]
    """Oldest first, each with the notes before it."""
    states: list[bytes | None]
    """The text of the state at each, None where there was no room for it."""
    after: tuple[NoteView, ...]
    made: str


def states_within(texts: Iterable[tuple[int, bytes]], count: int) -> list[bytes | None]:
    """The newest states that fit; *texts* are given with their place, newest first."""
    states: list[bytes | None] = [None] * count
    left = _STATES_BYTES
    for at, text in texts:
        left -= len(text)
        if left < 0:
            break
        states[at] = text
    return states


def write_page(page: Page) -> str:
    """The page as HTML."""
    return "".join(_parts(page))


def _parts(page: Page) -> Iterator[str]:
    title = _text(page.run_id)
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>"
    )
    yield from _head(page)
    yield from _timeline(page)
    yield "<main>"
    since = "".join(map(_note, reversed(page.after)))
    if since:
        yield f"<section><h2>since then</h2>{since}</section>"
    for at in reversed(range(len(page.moments))):
        yield from _step(page, at)
    yield f"</main><footer>made by holdfast export --html, {_text(page.made)}</footer>"
    yield "</body></html>\n"


def _head(page: Page) -> Iterator[str]:
    cost = sum(told.dollars for moment in page.moments for told in moment.notes)
    facts = [f"{len(page.moments)} checkpoints"]
    if page.moments:
        first, last = page.moments[0].header.saved_at, page.moments[-1].header.saved_at
        facts.append(f"{clock(first)} to {clock(last)[11:]}")
        facts.append(f"state {size(page.moments[-1].header.size)}")
    facts += [money(cost)] if cost else []
    name = f"<small>{_text(page.name)}</small>" if page.name else ""
    yield (
        f"<header><h1>{_text(page.run_id)} {name}</h1>"
        f'<p><b class="{_COLORS.get(page.status, "run")}">{_text(page.status)}</b> '
        f"{_text(' · '.join(facts))}</p></header>"
    )


def _timeline(page: Page) -> Iterator[str]:
    """A dot for each checkpoint, in equal steps, with a bar for what its state weighs."""
    count = len(page.moments)
    if not count:
        return
    wide = max(900, 14 * count)
    apart = wide / count
    most = max(moment.header.size for moment in page.moments) or 1
    yield (
        f'<div class="timeline"><svg viewBox="0 0 {wide} 64" width="{wide}" height="64" '
        'role="img" aria-label="timeline">'
        f'<line x1="0" y1="46" x2="{wide}" y2="46"/>'
    )
    for at, moment in enumerate(page.moments):
        header = moment.header
        x = apart * (at + 0.5)
        tall = 34 * header.size / most
        label = f"step {header.step} {header.node or ''}, {size(header.size)}"
        yield (
            f'<a href="#s{header.seq}"><title>{_text(label)}</title>'
            f'<rect x="{x - apart * 0.3:.1f}" y="{40 - tall:.1f}" width="{apart * 0.6:.1f}" '
            f'height="{tall:.1f}"/>'
            f'<circle class="{_COLORS.get(header.status, "run")}" cx="{x:.1f}" cy="46" r="4"/>'
        )
        if at in (0, count - 1) or count <= 40:
            yield f'<text x="{x:.1f}" y="62">{header.step}</text>'
        yield "</a>"
    yield "</svg></div>"


def _step(page: Page, at: int) -> Iterator[str]:
    moment = page.moments[at]
    header = moment.header
    marks = [header.kind] if header.kind not in ("routine", "final") else []
    marks += [header.status] if header.status != "running" else []
    marks += ["pinned"] if moment.pinned else []
    marks += [f"#{tag}" for tag in header.tags]
    badges = "".join(
        f'<i class="{_COLORS.get(mark, "mark")}">{_text(mark)}</i>' for mark in dict.fromkeys(marks)
    )
    yield (
        f'<section id="s{header.seq}"><h2><a href="#s{header.seq}">step {header.step}</a> '
        f"{_text(header.node or '')} {badges}<time>{_text(clock(header.saved_at))}</time></h2>"
        f'<p class="id">{_text(header.id)} · {size(header.size)}, stored as {size(header.stored)}'
        "</p>"
    )
    if moment.error:
        where = f"in {moment.failed_in}: " if moment.failed_in else ""
        yield f"<pre>{_text(where + moment.error, True)}</pre>"
    if moment.changes:
        yield f'<table class="diff">{"".join(map(_change, moment.changes))}</table>'
    else:
        yield '<p class="none">nothing changed</p>'
    yield "".join(map(_note, reversed(moment.notes)))
    if header.metadata:
        text = msgspec.json.format(msgspec.json.encode(header.metadata), indent=2).decode()
        yield f"<details><summary>metadata</summary><pre>{_text(text, True)}</pre></details>"
    state = page.states[at]
    if state is not None:
        text = msgspec.json.format(state, indent=2).decode()
        yield f"<details><summary>state</summary><pre>{_text(text, True)}</pre></details>"
    yield "</section>"


def _change(change: Change) -> str:
    sign = {"add": "+", "remove": "-", "replace": "~"}[change.op]
    place = change.path[1:].removesuffix("/-")
    value = "" if change.op == "remove" else _long(change.value)
    return f'<tr class="{change.op}"><td>{sign}</td><th>{_text(place)}</th><td>{value}</td></tr>'


def _long(value: Any) -> str:
    text = encode(value).decode(errors="replace")
    if len(text) <= 160:
        return f"<code>{_text(text)}</code>"
    full = msgspec.json.format(encode(value), indent=2).decode(errors="replace")
    short = _text(value_text(value, 120))
    return (
        f"<details><summary><code>{short}</code></summary><pre>{_text(full, True)}</pre></details>"
    )


def _note(told: NoteView) -> str:
    if told.kind not in ("effect", "question", "answer", "missed"):
        return ""
    state = {"done": "ok", "failed": "bad", "in doubt": "wait"}.get(told.state, "mark")
    badge = f'<i class="{state}">{_text(told.state)}</i>' if told.state else ""
    cost = [f"{told.seconds:.2f} s"] if told.seconds >= 0.005 else []
    cost += [f"{told.tokens} tokens"] if told.tokens else []
    cost += [money(told.dollars)] if told.dollars else []
    value = _text(told.error) if told.error else _long(told.value)
    return (
        f'<div class="note"><b>{_text(told.kind)}</b> {_text(told.id)} {badge} '
        f"<small>{_text(' · '.join(cost))}</small> {value}</div>"
    )


def _text(text: object, lines: bool = False) -> str:
    return escape(plain(text, lines=lines), quote=True)


_STYLE = """
:root{color-scheme:light dark;--ink:light-dark(#1b2a33,#d9e2e7);--dim:light-dark(#66757f,#8a9aa4);
--paper:light-dark(#fbfaf7,#12191d);--card:light-dark(#fff,#1a2328);--rule:light-dark(#e2e0d8,#2b373e);
--ok:light-dark(#1f7a4d,#58c48c);--bad:light-dark(#b3362b,#f0776b);--wait:light-dark(#1c6a8c,#62b8dc);
--run:light-dark(#8a6d1a,#d9b44a)}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:2rem 1.25rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0}h1 small,time,.id,.none,footer,small{color:var(--dim);font-weight:400}
h2{font-size:1rem;margin:0;display:flex;gap:.6rem;align-items:baseline}
h2 a{color:inherit;text-decoration:none}
time{margin-left:auto;font-size:.8rem}.id{font-size:.75rem;margin:.1rem 0 .6rem}
header p{margin:.3rem 0 1rem}.none{margin:.2rem 0}
section{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:.8rem 1rem;
margin:.8rem 0}section:target{outline:2px solid var(--wait)}
.timeline{overflow-x:auto;border-bottom:1px solid var(--rule);margin-bottom:1rem}
svg line{stroke:var(--rule);stroke-width:2}svg rect{fill:var(--rule)}
svg a:hover rect{fill:var(--wait)}
svg text{font-size:9px;fill:var(--dim);text-anchor:middle}
circle.ok{fill:var(--ok)}circle.bad{fill:var(--bad)}circle.wait{fill:var(--wait)}
circle.run{fill:var(--run)}b.ok,i.ok{color:var(--ok)}b.bad,i.bad{color:var(--bad)}
b.wait,i.wait{color:var(--wait)}b.run,i.run{color:var(--run)}
i{font-style:normal;font-size:.75rem;border:1px solid currentColor;border-radius:99px;
padding:0 .5rem}
i.mark{color:var(--dim)}
table.diff{border-collapse:collapse;width:100%;font-size:.85rem;table-layout:fixed}
.diff td:first-child{width:1.5rem}.diff th{width:11rem;text-align:left;font-weight:500;
vertical-align:top;overflow-wrap:anywhere}.diff td{vertical-align:top;padding:.1rem .3rem .1rem 0}
.diff tr.add td:first-child{color:var(--ok)}.diff tr.remove td:first-child{color:var(--bad)}
.diff tr.replace td:first-child{color:var(--run)}.diff tr.remove th{text-decoration:line-through}
code,pre{font:12.5px/1.45 ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
pre{white-space:pre-wrap;background:var(--paper);border-radius:6px;padding:.7rem;margin:.4rem 0;
max-height:28rem;overflow:auto}
details{margin-top:.3rem}summary{cursor:pointer;color:var(--dim);font-size:.85rem}
.note{border-left:3px solid var(--rule);padding-left:.7rem;margin:.5rem 0;font-size:.85rem}
footer{font-size:.75rem;margin-top:2rem}
@media print{section{break-inside:avoid}pre{max-height:none}}
"""
