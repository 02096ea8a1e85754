"""Text from a journal that cannot steer a terminal, nor show one name as another."""

from __future__ import annotations

import re

_HOSTILE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Controls, marks that hide text or turn its direction, and half surrogate pairs."""
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def plain(text: object, *, lines: bool = False) -> str:
    r"""*text* with every control character written out.

    With *lines*, line ends and tabs stay.

    >>> plain("kelp\x1b]0;owned\x07")
    'kelp\\x1b]0;owned\\x07'
    """

    def shown(found: re.Match[str]) -> str:
        mark = found[0]
        if lines and mark in "\n\t":
            return mark
        code = ord(mark)
        return _NAMED.get(mark) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")

    return _HOSTILE.sub(shown, str(text))


def as_references(text: str) -> str:
    """HTML text with control characters as numbers, which a form's field gives back."""

    def shown(found: re.Match[str]) -> str:
        code = ord(found[0])
        # Browsers read these numbers as letters of another encoding.
        return found[0] if 0x80 <= code < 0xA0 else f"&#{code};"

    return _HOSTILE.sub(shown, text)
