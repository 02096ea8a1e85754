"""Primaries that fail while an agent's loop and a run go on, on a clock that is moved.

Run in a mount namespace of its own (``unshare --mount``) as root::

    python -m tests.crash.outages MEDIUM FAILURE DIRECTORY SECONDS...

For each number of seconds after the last save, the program prints a JSON object that says what was
saved, restored and lost.
"""

from __future__ import annotations

import json
import logging
import operator
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.crash.moved_clock import move, real_monotonic
from tests.seeds.test_dream import LOOP
from tests.servers import Postgres, Redis, valkey_program

import surehold
from surehold import CheckpointManager, ResilientCheckpointManager, Rules
from surehold.errors import SureholdError
from surehold.storage.registry import open_storage
from surehold.storage.replicated import ResilientStorage

_CYCLES, _FAILS, _RESTARTS, _RETURNS = 40, 7, 20, 30


class Primary(ABC):
    """A primary that can fail and come back."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)

    @property
    @abstractmethod
    def address(self) -> str: ...

    @abstractmethod
    def fail(self) -> None: ...

    def come_back(self) -> None:
        """Work again."""

    def end(self) -> None:
        """Free what it took."""


class Disk(Primary):
    """A file or directory that is deleted."""

    def __init__(self, root: Path, medium: str) -> None:
        super().__init__(root)
        self.medium = medium
        self.place = root / "disk"
        self.place.mkdir()

    @property
    def address(self) -> str:
        if self.medium == "sqlite":
            return f"sqlite:///{quote(str(self.place))}/agents.db"
        _, _, compress = self.medium.partition("-")
        option = f"?compress={compress}" if compress else ""
        return f"file://{quote(str(self.place))}/runs{option}"

    def fail(self) -> None:
        for path in list(self.place.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class FullDisk(Disk):
    """A small file system that another file fills."""

    def __init__(self, root: Path, medium: str) -> None:
        super().__init__(root, medium)
        _run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", self.place)

    def fail(self) -> None:
        page = bytes(4096)
        with suppress(OSError), (self.place / "ballast").open("wb", buffering=0) as file:
            while file.write(page):
                pass

    def come_back(self) -> None:
        (self.place / "ballast").unlink()

    def end(self) -> None:
        _run("umount", "-l", self.place)


class UnmountedDisk(Disk):
    """A file system that is unmounted, and mounted again; a file is where its directory was."""

    def __init__(self, root: Path, medium: str) -> None:
        super().__init__(root, medium)
        self.real = root / "real"
        self.real.mkdir()
        self.come_back()

    def fail(self) -> None:
        _run("umount", "-l", self.place)

    def come_back(self) -> None:
        _run("mount", "--bind", self.real, self.place)

    def end(self) -> None:
        _run("umount", "-l", self.place)


class Server(Primary):
    """A database server that is down."""

    def __init__(self, root: Path, medium: str) -> None:
        super().__init__(root)
        for directory in (root, *root.parents):
            if directory.stat().st_uid == 0 and directory != Path("/"):
                directory.chmod(directory.stat().st_mode | 0o055)
        self.server: Postgres | Redis
        if medium == "postgres":
            self.server = Postgres(root / "s")
        else:
            durable = ("appendonly yes", "appendfsync always")
            self.server = Redis(valkey_program(), root / "s", *durable)
        self.server.start()

    @property
    def address(self) -> str:
        url = self.server.url
        return f"{url}{'&' if '?' in url else '?'}timeout=2&patience=1"

    def fail(self) -> None:
        self.server.stop()

    def come_back(self) -> None:
        self.server.start()

    def end(self) -> None:
        self.server.stop()


FAILURES: dict[str, Callable[[Path, str], Primary]] = {
    "deleted": Disk,
    "full": FullDisk,
    "unmounted": UnmountedDisk,
    "down": Server,
}


class Agent:
    """The seed's loop, as written: five minutes a cycle; its primary fails in one of them."""

    def __init__(self, primary: Primary, after: float) -> None:
        self.primary = primary
        self.after = after
        self.copy = f"file://{quote(str(primary.root))}/copy"
        self.cycle = 0
        self.errors: list[str] = []
        self.saved: dict[str, int] = {}
        self.restored = 0
        self.waited = 0.0
        self.names: dict[str, Any] = {
            "ResilientCheckpointManager": self.manager,
            "time": time,
            "logger": logging.getLogger("agent"),
            "process_mailbox": self.begin_cycle,
            "check_tasks": lambda: None,
            "execute_current_task": self.work,
        }

    def manager(self, agent_id: str) -> ResilientCheckpointManager:
        made = ResilientCheckpointManager(
            agent_id,
            self.primary.address,
            fallbacks=[self.copy],
            retention=Rules(),
            clock=lambda: datetime.fromtimestamp(time.time(), UTC),
            monotonic=time.monotonic,
        )
        create = made.create_checkpoint

        def created(kind: str = "routine", **options: Any) -> str:
            began = real_monotonic()
            checkpoint_id = create(kind, **options)
            self.waited = max(self.waited, real_monotonic() - began)
            self.saved[checkpoint_id] = made.memory["cycle"]
            return checkpoint_id

        made.create_checkpoint = created  # type: ignore[method-assign]
        return made

    @property
    def checkpoints(self) -> ResilientCheckpointManager:
        made: ResilientCheckpointManager = self.names["checkpoint_manager"]
        return made

    def begin_cycle(self) -> None:
        self.cycle += 1
        move(self.after if self.cycle == _FAILS else 300)
        if self.cycle == _FAILS:
            self.primary.fail()
        if self.cycle == _RETURNS:
            self.primary.come_back()
        if self.cycle > _CYCLES:
            raise SystemExit

    def work(self) -> None:
        made = self.checkpoints
        made.memory["cycle"] = self.cycle
        made.current_task.update(id="reports", progress_percentage=self.cycle)
        if self.cycle == _FAILS:
            raise ConnectionError("the task failed as well")  # the loop saves at once
        if self.cycle in (_FAILS + 1, _RESTARTS, _RETURNS + 1):
            if self.cycle == _RESTARTS:
                made.close()
                made = self.names["checkpoint_manager"] = self.manager("agent-3")
            self.restore(made)

    def restore(self, made: ResilientCheckpointManager) -> None:
        latest = made.get_latest_checkpoint("routine")
        assert latest is not None
        began = real_monotonic()
        made.restore_checkpoint(latest)
        self.waited = max(self.waited, real_monotonic() - began)
        assert made.memory["cycle"] == self.saved[latest]
        self.restored += 1

    def run(self) -> dict[str, Any]:
        """Run the loop to its end, and judge it with managers that are opened afterwards."""
        ended = ""
        try:
            exec(LOOP, self.names)
        except SystemExit:
            pass
        except Exception as error:
            ended = f"cycle {self.cycle}: {type(error).__name__}: {error}"
        self.checkpoints.close()
        with self.manager("agent-3") as made:
            storage = made.storage
            assert isinstance(storage, ResilientStorage)
            diverged = storage.sync()
            sides = [_states(one, self.saved) for one in storage.storages]
            sound = all(made.verify())
        cycles = list(self.saved.values())
        lost = [sum(map(operator.ne, side, cycles)) for side in sides]
        return {
            "saved": len(self.saved),
            "restored": self.restored,
            "lost": max(lost),
            "diverged": len(diverged),
            "sound": sound,
            "waited": round(self.waited, 1),
            "died": ended,
        }


def _states(storage: Any, saved: dict[str, int]) -> list[int | None]:
    """The cycle in each saved checkpoint, as one storage has it; None for a lost one."""
    found: list[int | None] = []
    manager = CheckpointManager(storage)
    for checkpoint_id in saved:
        try:
            found.append(manager.load_checkpoint(checkpoint_id)["memory"]["cycle"])
        except SureholdError:
            found.append(None)
    return found


def loop(primary: Primary, after: float) -> dict[str, Any]:
    """A run with recorded calls, whose primary fails before its third item."""
    storage = f"resilient:{primary.address}|file://{quote(str(primary.root))}/loop"
    calls: list[int] = []
    died = ""
    try:
        with surehold.run("loop", storage=storage) as run:
            for number in run.each(range(6)):
                if number == 2:
                    primary.fail()
                    move(after)
                if number == 4:
                    move(after)
                run.call(calls.append, number)
    except SureholdError as error:
        died = f"{type(error).__name__}: {error}"
    primary.come_back()
    with surehold.run("loop", storage=storage) as run:
        for number in run.each(range(6)):
            run.call(calls.append, number)
    with open_storage(storage) as opened, CheckpointManager(opened) as manager:
        assert isinstance(opened, ResilientStorage)
        diverged = opened.sync()
        return {
            "calls": len(calls),
            "repeated": len(calls) - len(set(calls)),
            "lost": 6 - len(set(calls)),
            "diverged": len(diverged),
            "sound": all(manager.verify()),
            "died": died,
        }


def _run(*command: Any) -> None:
    subprocess.run(list(map(str, command)), check=True)


def main(medium: str, failure: str, directory: str, *afters: str) -> None:
    logging.disable(logging.CRITICAL)
    for number, after in enumerate(afters):
        root = Path(directory, str(number))
        told: dict[str, Any] = {"after": float(after)}
        for name, trial in (
            ("agent", lambda primary, seconds: Agent(primary, seconds).run()),
            ("loop", loop),
        ):
            primary = FAILURES[failure](root / name, medium)
            try:
                told[name] = trial(primary, float(after))
            finally:
                primary.end()
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
