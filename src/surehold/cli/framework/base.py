"""The base of every command: options, storage, output and prompts.

A command is a function whose first parameter is a `Cli`; `@command` adds the shared options.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from surehold.cli.framework.args import Argument, CommandSignature, Option, parameter, parameters_of
from surehold.cli.framework.exits import ConfirmationError
from surehold.cli.framework.terminal import Terminal, safe_json
from surehold.cli.settings import CallSettings, check_exists, load_settings
from surehold.core.plain import plain
from surehold.engine.hooks import redacting_hooks
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import note_action
from surehold.errors import UsageError
from surehold.storage.addresses import mask_url
from surehold.storage.base import Storage

if TYPE_CHECKING:
    from surehold.views.documents import Document
    from surehold.views.finder import Finder

T = TypeVar("T")
Blocks = Callable[[], Iterable[object]]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, Option("--dry-run", "-n", help="Only say what would be done.")]
Limit = Annotated[int, Option("-n", "--limit", help="How many.", min=1)]
All = Annotated[bool, Option("--all", "-a", help="All of them.")]
Runs = Annotated[list[str] | None, Argument(metavar="RUN", help="Only these runs; else all.")]


def _user_here() -> str:
    import getpass
    import socket

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


class Cli:
    """One call of a command."""

    def __init__(
        self,
        terminal: Terminal,
        *,
        storage: str | None = None,
        json: bool = False,
        jsonl: bool = False,
        no_color: bool = False,
        manager: CheckpointManager | None = None,
        page: Callable[[], ModuleType] | None = None,
    ) -> None:
        """*manager* is used instead of one over the storage of the settings.

        *page* loads the page; a console has none.
        """
        if json and jsonl:
            raise UsageError("--json and --jsonl are both given", hint="give one of them")
        self.terminal = terminal
        self.json = json
        self.jsonl = jsonl
        self._option = storage
        self._stack = ExitStack()
        self._page = page
        if manager is not None:
            self.manager = manager
        if no_color:
            terminal.no_color()

    @cached_property
    def settings(self) -> CallSettings:
        """The settings of options, environment and files."""
        return load_settings(self._option, self.terminal.environ, Path.cwd())

    @cached_property
    def who(self) -> str:
        """The name that is recorded with what this call does to a run."""
        return self.terminal.environ.get("SUREHOLD_USER") or _user_here()

    def note(self, run_id: str, did: str, *, step: int = 0) -> None:
        """Record in a run's journal what this call did to it."""
        note_action(self.manager, run_id, did, self.who, step=step)

    @property
    def address(self) -> str:
        """The storage's address without its password."""
        return mask_url(self.settings.storage.value)

    @cached_property
    def manager(self) -> CheckpointManager:
        """A manager over the storage, which must exist."""
        check_exists(self.settings.storage)
        return self.open()

    def open(self, **options: Any) -> CheckpointManager:
        """A manager over the storage, which is created if it does not exist."""
        if self.settings.redact:
            options.setdefault("hook_manager", redacting_hooks())
        manager = CheckpointManager(self.settings.storage.value, **options)
        return self._stack.enter_context(manager)

    @property
    def storage(self) -> Storage:
        """The storage, which must exist."""
        return self.manager.storage

    @cached_property
    def finder(self) -> Finder:
        """Finds runs and checkpoints by their addresses."""
        from surehold.views.finder import Finder

        return Finder(self.manager, self.say if self.for_people else None)

    @property
    def page(self) -> ModuleType:
        """`surehold.web`, loaded when a command needs it; `cli` does not import it."""
        if self._page is None:
            raise UsageError("there is no page here", hint="call surehold in a shell")
        return self._page()

    def close(self) -> None:
        """Close what was opened."""
        self._stack.close()

    @property
    def for_people(self) -> bool:
        """True if neither --json nor --jsonl was given."""
        return not self.json and not self.jsonl

    def give(self, document: Document, text: Blocks) -> None:
        """Print a result: *document* with --json or --jsonl, else *text*."""
        out = self.terminal.stdout
        if self.for_people:
            self.terminal.show(text())
            return
        if self.json:
            out.write(safe_json(document, indent=True) + "\n")
        else:
            for part in document.parts():
                out.write(safe_json(part) + "\n")
        out.flush()

    def stream(self, document: Document, text: Blocks) -> None:
        """Print one of several results; as JSON each is a line."""
        if self.for_people:
            self.terminal.show(text())
        else:
            self.terminal.stdout.write(safe_json(document) + "\n")
            self.terminal.stdout.flush()

    def say(self, *cells: object) -> None:
        """Print a line that is not the result, to stderr."""
        self.terminal.say(*cells)

    def confirm(
        self,
        what: str,
        *,
        yes: bool,
        hint: str = "--yes does it, --dry-run shows what would be done",
    ) -> None:
        """Ask whether to continue; without a terminal and without --yes, refuse."""
        if yes:
            return
        if not self.terminal.asks:
            raise ConfirmationError(f"{what}; this needs a confirmation", hint=hint)
        self.terminal.stderr.write(f"{plain(what)}. Continue? [y/N] ")
        self.terminal.stderr.flush()
        if self.terminal.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfirmationError("nothing was done")

    def progress(self, title: str, items: Iterable[T], total: int) -> Iterable[T]:
        """*items*, of which there are *total*; a terminal shows on stderr how far it is."""
        stream = self.terminal.stderr
        if not stream.isatty() or total < 2:
            return items
        from rich.console import Console
        from rich.progress import track

        console = Console(file=stream, no_color=not self.terminal.has_color(stream))
        return track(items, title, total, console=console, transient=True)


_SHARED = tuple(
    parameter(name, Annotated[kind, Option(*names, metavar=metavar, help=about)], default)
    for name, kind, names, metavar, about, default in (
        ("storage", str | None, ("--storage", "-s"), "URL", "Where runs are.", None),
        ("json", bool, (), "", "Print one JSON document.", False),
        ("jsonl", bool, (), "", "Print a line of JSON for each.", False),
        ("no_color", bool, (), "", "Print no colours.", False),
        ("debug", bool, (), "", "Show the traceback of an error.", False),
    )
)
"""The options that every command has."""


class Command:
    """A command, ready to be called."""

    def __init__(self, function: Callable[..., int | None]) -> None:
        self._function = function
        name = function.__name__.strip("_").replace("_", "-")
        about = function.__doc__ or ""
        self.signature = CommandSignature(name, about, [*parameters_of(function), *_SHARED])

    def __call__(
        self,
        words: Sequence[str],
        terminal: Terminal,
        *,
        manager: CheckpointManager | None = None,
        page: Callable[[], ModuleType] | None = None,
    ) -> int:
        """Run it with a command line; gives the exit code. *manager*, *page*: see `Cli`."""
        if _asks_for_help(words):
            terminal.stdout.write(self.signature.help())
            return 0
        given = self.signature.parse(words)
        shared = {one.name: given.pop(one.name) for one in _SHARED}
        shared.pop("debug")  # read where errors are printed
        cli = Cli(terminal, manager=manager, page=page, **shared)
        try:
            return self._function(cli, **given) or 0
        finally:
            cli.close()


def _asks_for_help(words: Sequence[str]) -> bool:
    before = words[: words.index("--")] if "--" in words else words
    return "--help" in before or "-h" in before


def import_from_here() -> None:
    """Let modules in the working directory be imported, as `python` itself would."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def import_modules(names: Iterable[str]) -> None:
    """Import modules of the user, for what they register."""
    import_from_here()
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise UsageError(f"{name} cannot be imported: {error}") from error


command = Command
"""Decorates a function whose first parameter is a `Cli`."""
