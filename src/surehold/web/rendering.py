"""Templates, and the short forms of values that they use."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from surehold.core.plain import as_references, plain
from surehold.core.values import decode, encode
from surehold.engine.journal import Change
from surehold.engine.runs import NoteView
from surehold.storage.base import Owner
from surehold.views.documents import ChangeRow
from surehold.views.run import (
    ShownChange,
    answer_of,
    asked_in,
    by_list,
    call_words,
    calls_of,
    marked,
    shown_change,
    step_words,
)
from surehold.views.values import read_turn
from surehold.views.words import ago, counted, cut, money, size, span, step_name, value_text
from surehold.web.forms import fields_of
from surehold.web.markdown import told

_HERE = Path(__file__).parent
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_SYMBOLS = {
    "running": "▶",
    "completed": "✓",
    "failed": "✕",
    "cancelled": "✕",
    "interrupted": "◐",
    "waiting": "◐",
    "queued": "○",
    "dead": "✕",
    "stale": "!",
}
_MOST_ASKED = 6
"""Messages of a recorded request that are shown with its answer."""
_MOST_SHOWN = 200_000
"""Characters of one value that a page shows."""


class Assets:
    """The style sheet and the script, each at an address that names its content."""

    def __init__(self) -> None:
        files = sorted((_HERE / "static").iterdir())
        self._content = {file.name: file.read_bytes() for file in files if file.suffix in _TYPES}
        texts = b"".join(self._content.values())
        self.version = hashlib.sha256(texts).hexdigest()[:12]

    def text(self, name: str) -> str:
        """The content of a file."""
        return self._content[name].decode()

    def integrity(self, name: str) -> str:
        """The hash by which a browser checks a file before it uses it."""
        digest = hashlib.sha256(self._content[name]).digest()
        return f"sha256-{base64.b64encode(digest).decode()}"

    def respond(self, request: Request) -> Response:
        """Give a file that is in the package, and no other."""
        name = request.path_params["name"]
        if name not in self._content:
            return Response("not found", 404, media_type="text/plain")
        return Response(
            self._content[name],
            media_type=_TYPES[Path(name).suffix],
            headers={"cache-control": "public, max-age=31536000, immutable"},
        )


class Renderer:
    """Renders templates; every value in them is escaped."""

    def __init__(self, assets: Assets, facts: Mapping[str, Any]) -> None:
        """*facts* are what every template knows, such as the storage's address."""
        self._assets = assets
        self._facts = facts
        self._env = make_environment()

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> Response:
        """A template as a response."""
        visitor = request.scope.get("surehold")
        root = request.scope.get("root_path", "")

        def url(path: str, **query: Any) -> str:
            given = {name: value for name, value in query.items() if value not in (None, "", False)}
            return f"{root}{path}" + (f"?{urlencode(given)}" if given else "")

        text = self._env.get_template(template).render(
            **{**self._facts, **values},
            url=url,
            root=root,
            asset=lambda name: f"{root}/static/{self._assets.version}/{name}",
            integrity=self._assets.integrity,
            form_token=visitor.form_token if visitor else "",
            user=visitor.name if visitor else "",
            here=request.url.path.removeprefix(root),
        )
        return HTMLResponse(text, status)


def make_environment() -> Environment:
    """The templates, with the filters that they use.

    Every value is escaped, and its control characters are written out; what a field of a form
    must give back unchanged passes the filter `field`.
    """
    env = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        ago=ago,
        clock=_clock,
        counted=counted,
        cut=cut,
        money=money,
        size=size,
        symbol=lambda status: _SYMBOLS.get(status, "•"),
        value=_shown,
        brief=value_text,
        step_name=step_name,
        step_words=partial(step_words, width=60),
        by_list=by_list,
        call_words=call_words,
        calls_of=calls_of,
        is_call=lambda value: answer_of(value) is not None,
        answer_of=answer_of,
        asked=lambda value: [*filter(None, map(read_turn, asked_in(value)[-_MOST_ASKED:]))],
        shown_changes=lambda changes: [*map(shown_change, changes)],
        shown_rows=lambda rows: [*map(_row, rows)],
        told=told,
        lines=lambda text: text.count("\n") + 1,
        first_line=lambda text: text.partition("\n")[0],
        shell=shlex.join,
        python=repr,
        span=span,
        fields=fields_of,
        field=lambda value: Markup(as_references(escape(value))),  # escaped one step before
        owner=_owner,
        facts_line=_facts_line,
        moment=lambda seconds: datetime.fromtimestamp(seconds, UTC),
        digest=lambda value: hashlib.sha256(encode(value)).hexdigest()[:12],
    )
    env.globals.update(marked=marked)
    return env


def _visible(value: Any) -> Any:
    if isinstance(value, Markup | int):
        return value
    return plain(str(value).replace("\r\n", "\n"), lines=True)


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _owner(owner: Owner) -> str:
    """The process that holds a lease, in words."""
    return f"process {owner.pid} on {owner.host}"


def _facts_line(note: NoteView) -> str:
    """The content of a note without an id, in a line."""
    facts = note.facts
    if note.kind == "tag":
        names = [f"+{tag}" for tag in facts.get("add", ())]
        names += [f"-{tag}" for tag in facts.get("remove", ())]
        return f"{' '.join(names)} on record {facts.get('target')}"
    if note.kind == "pin":
        return f"{'pinned' if facts.get('on') else 'unpinned'} record {facts.get('target')}"
    return str(facts["did"]) if "did" in facts else value_text(facts)


def _row(row: ChangeRow) -> ShownChange:
    """A change of a document as one of a step, with the value before it."""
    old, value = (
        decode(bytes(one)) if isinstance(one, msgspec.Raw) else one for one in (row.old, row.value)
    )
    change = Change(row.op, row.path, None if value is msgspec.UNSET else value)
    return shown_change(change, old)


def _shown(value: Any) -> str:
    """A value as indented JSON; text as itself."""
    if isinstance(value, msgspec.Raw):
        value = decode(bytes(value))
    return cut(value if isinstance(value, str) else pretty(encode(value)), _MOST_SHOWN)


def pretty(text: bytes) -> str:
    """JSON text, indented."""
    return msgspec.json.format(text, indent=2).decode(errors="replace")
