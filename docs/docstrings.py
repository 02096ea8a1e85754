"""An extension of griffe: examples in docstrings are shown as code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """*text* with a fence around each example, which ends at an empty line.

    >>> print(fenced("Adds.\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    parts = FENCED.split(text)
    parts[::2] = [
        EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", part) for part in parts[::2]
    ]
    return "".join(parts)


class Examples(Extension):
    """Puts fences around the examples of every docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
