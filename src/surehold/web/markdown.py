"""Texts of models as safe HTML: lists, tables, code and emphasis.

Links are written as their text and their target, so that a reader sees where they lead.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from surehold.core.plain import plain

_MOST = 100_000
"""Characters of a text that are rendered; longer ones are shown as they are."""


class _Renderer(RendererHTML):
    """Writes links as text, and headings below those of the page."""

    def link_open(
        self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType
    ) -> str:
        env.setdefault("targets", []).append(str(tokens[at].attrGet("href") or ""))
        return '<span class="link-text">'

    def link_close(
        self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType
    ) -> str:
        target = env.get("targets", [""]).pop()
        return f"</span> <code>{escape(target)}</code>"

    def heading_open(
        self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType
    ) -> str:
        return '<p class="heading">'

    def heading_close(
        self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType
    ) -> str:
        return "</p>\n"


_MARKDOWN = MarkdownIt("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer)
_MARKDOWN.enable("table").disable("image")


def told(text: str) -> Markup:
    """A message as safe HTML: JSON as code, anything else as Markdown."""
    text = plain(text, lines=True)
    if len(text) > _MOST:
        return Markup("<pre>{}</pre>").format(text)
    if text.lstrip()[:1] in ("{", "["):
        try:
            pretty = msgspec.json.format(text.encode(), indent=2).decode()
            return Markup("<pre>{}</pre>").format(pretty)
        except msgspec.DecodeError:
            pass
    return Markup(_MARKDOWN.render(text))
