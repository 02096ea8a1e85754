"""The lines that the console reads, from a terminal or a pipe."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from surehold.cli.console.words import COMMANDS
from surehold.lazy import extra

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer, Completion

Known = Callable[[], Iterable[tuple[str, str]]]
"""Ids of checkpoints, each with a description."""

_HISTORY = Path(".surehold") / "console_history"


class Lines(ABC):
    """A source of lines."""

    interactive: bool

    def __init__(self) -> None:
        self._back: list[str] = []

    async def next(self, prompt: str, default: str = "") -> str | None:
        """The next line, or None at the end; a person may edit *default*."""
        return self._back.pop() if self._back else await self._read(prompt, default)

    def give_back(self, line: str) -> None:
        """Let `next` return this line again."""
        self._back.append(line)

    @abstractmethod
    async def _read(self, prompt: str, default: str) -> str | None:
        """Wait for the next line."""


class PipedLines(Lines):
    """Lines of a pipe or a file."""

    interactive = False

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream

    async def _read(self, prompt: str, default: str) -> str | None:
        line = await asyncio.to_thread(self._stream.readline)
        return line.rstrip("\n") if line else None


class TerminalLines(Lines):
    """Lines that a person types, with a history and completion of commands and ids."""

    interactive = True

    def __init__(self, known: Known, history: Path = _HISTORY) -> None:
        with extra("fleet", "a console on a terminal needs prompt_toolkit"):
            from prompt_toolkit import PromptSession
            from prompt_toolkit.history import FileHistory

        super().__init__()
        history.parent.mkdir(mode=0o700, exist_ok=True)
        history.touch(mode=0o600)
        self._session: Any = PromptSession(
            history=FileHistory(str(history)),
            completer=_completer(known),
            complete_while_typing=False,  # a task is not a menu
        )

    async def _read(self, prompt: str, default: str) -> str | None:
        """Ctrl-C drops the line, ctrl-D ends the input."""
        try:
            line: str = await self._session.prompt_async(prompt, default=default)
        except KeyboardInterrupt:
            return ""
        except EOFError:
            return None
        return line


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
