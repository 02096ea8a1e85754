"""The lines that the console reads, from a terminal or a pipe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from holdfast.cli.console.words import COMMANDS

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer, Completion

Known = Callable[[], Iterable[tuple[str, str]]]
"""Ids of checkpoints, each with a description."""

_HISTORY = Path(".holdfast") / "console_history"


class Lines(Protocol):
    """A source of lines."""

    interactive: bool

    async def next(self, prompt: str, default: str = "") -> str | None:
        """The next line, or None at the end; a person may edit *default*."""

    def give_back(self, line: str) -> None:
        """Let `next` return this line again."""


class PipedLines:
    """Lines of a pipe or a file."""

    interactive = False

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._back: list[str] = []

    async def next(self, prompt: str, default: str = "") -> str | None:
        """See `Lines`."""
        if self._back:
            return self._back.pop()
        line = await asyncio.to_thread(self._stream.readline)
        return line.rstrip("\n") if line else None

    def give_back(self, line: str) -> None:
        """See `Lines`."""
        self._back.append(line)


class TerminalLines:
    """Lines that a person types, with a history and completion of commands and ids."""

    interactive = True

    def __init__(self, known: Known, history: Path = _HISTORY) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory

        history.parent.mkdir(mode=0o700, exist_ok=True)
        history.touch(mode=0o600)
        self._session: Any = PromptSession(
            history=FileHistory(str(history)),
            completer=_completer(known),
            complete_while_typing=False,  # a task is no menu
        )
        self._back: list[str] = []

    async def next(self, prompt: str, default: str = "") -> str | None:
        """See `Lines`. Ctrl-C drops the line, ctrl-D ends the input."""
        if self._back:
            return self._back.pop()
        try:
            line: str = await self._session.prompt_async(prompt, default=default)
        except KeyboardInterrupt:
            return ""
        except EOFError:
            return None
        return line

    def give_back(self, line: str) -> None:
        """See `Lines`."""
        self._back.append(line)


def _completer(known: Known) -> Completer:
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.document import Document

    class Words(Completer):
        """Completes the command and, where one takes ids, the id."""

        def get_completions(self, document: Document, event: Any) -> Iterable[Completion]:
            before = document.text_before_cursor
            words = before.split()
            word = words[-1] if words and not before.endswith(" ") else ""
            if len(words) - bool(word) == 0:
                for name, entry in COMMANDS.items():
                    if name.startswith(word):
                        yield Completion(name, -len(word), display_meta=entry.about)
            elif words[0] in COMMANDS and COMMANDS[words[0]].ids:
                for id, about in known():
                    if id.startswith(word):
                        yield Completion(id, -len(word), display_meta=about)

    return Words()
