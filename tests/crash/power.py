"""Cuts the power under a process that works: a file system of its own, shut down without a flush.

Run as root in a mount namespace of its own (``unshare --mount``), so that nothing stays mounted::

    python -m tests.crash.power MEDIUM CUTS SCRATCH [--without-sync]

It prints a JSON list for every cut: how many saves had been acknowledged, and what was wrong
afterwards, if anything.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.crash.judging import Told
from tests.crash.workload import work

_SHUTDOWN = 0x8004587D
_WITHOUT_LOG_FLUSH = 2
_LIVES = 3
"""How many processes work in one directory, each ended by a cut, before a new one is begun."""
_MOST_LINES = 60


def _sh(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Disk:
    """An ext4 file system in a file."""

    def __init__(self, scratch: Path) -> None:
        self._image = scratch / "disk.img"
        self.root = scratch / "disk"
        self.root.mkdir()
        with self._image.open("wb") as image:
            image.truncate(96 << 20)
        _sh("mkfs.ext4", "-q", str(self._image))

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        # The system writes nothing back by itself for as long as a cut can take.
        _sh("mount", "-o", "loop,commit=300", str(self._image), str(self.root))
        try:
            yield self.root
        finally:
            _sh("umount", str(self.root))

    def cut(self) -> None:
        """From now on nothing that is not on the disk gets there."""
        root = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(root, _SHUTDOWN, struct.pack("I", _WITHOUT_LOG_FLUSH))
        finally:
            os.close(root)


def _never_sync() -> None:
    """What a storage that forgets to sync would do, for the control."""
    from holdfast.storage import sqlite_pool

    os.fsync = os.fdatasync = lambda fd: None  # type: ignore[assignment]
    sqlite_pool._FULL = 0
    sqlite_pool._SETTINGS["synchronous"] = 0


def _start(medium: str, directory: Path, seed: int, *, sync: bool) -> tuple[int, socket.socket]:
    """A process that works for ever, and the socket that it tells through."""
    ear, mouth = socket.socketpair()
    pid = os.fork()
    if pid:
        mouth.close()
        return pid, ear
    try:
        ear.close()
        if not sync:
            _never_sync()

        def tell(*words: Any) -> None:
            mouth.sendall(json.dumps(words).encode() + b"\n")

        work(tell, medium, str(directory), seed)
    finally:
        os._exit(0)


def _lines(data: bytes) -> list[list[Any]]:
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def _live(disk: Disk, medium: str, directory: Path, seed: int, *, sync: bool) -> list[list[Any]]:
    """Let a process work, cut the power, and give what it had told by then.

    Every other time it is stopped first, so that all it told counts; else the cut finds it in the
    middle of whatever it does, and what it told after the last look counts as begun only.
    """
    chance = random.Random(seed)
    pid, ear = _start(medium, directory, seed, sync=sync)
    heard = b""
    wanted = chance.randint(10, 10 + _MOST_LINES)
    with ear:
        ear.settimeout(30)
        while heard.count(b"\n") < wanted and (data := ear.recv(1 << 16)):
            heard += data
        time.sleep(chance.random() * 0.01)
        stopped = chance.random() < 0.5
        if stopped:
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
        ear.setblocking(False)
        with suppress(BlockingIOError):
            heard += ear.recv(1 << 20)
        disk.cut()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ear.setblocking(True)
        rest = b""
        while data := ear.recv(1 << 20):
            rest += data
    known = _lines(heard)
    later = _lines(heard[heard.rfind(b"\n") + 1 :] + rest)
    return known + [line for line in later if line[0] in ("save", "drop", "fork", "delete")]


def main(medium: str, cuts: int, scratch: Path, *, sync: bool) -> None:
    disk = Disk(scratch)
    left = 0
    for cut in range(cuts):
        if left == 0:
            told, name, left = Told(), f"runs-{cut}", _LIVES
        left -= 1
        before = len(told.acknowledged)
        with disk.mounted() as root:
            directory = root / name
            if not directory.exists():
                directory.mkdir()
                # The directory is the user's, who made it long ago.
                _sh("sync", "-f", str(root))
            lines = _live(disk, medium, directory, cut, sync=sync)
        with disk.mounted() as root:
            wrong = ""
            try:
                told.hear(lines)
                told.check(medium, root / name)
                told.go_on(medium, root / name, 10_000 + cut)
            except Exception as error:
                wrong, left = f"cut {cut}: {type(error).__name__}: {error}", 0
            print(json.dumps([len(told.acknowledged) - before, wrong]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sync="--without-sync" not in sys.argv)
