"""Cuts the power under a process that works: a file system of its own, shut down without a flush.

Run as root in a mount namespace of its own (``unshare --mount``), so that nothing stays mounted::

    python -m tests.crash.power MEDIUM CUTS SCRATCH ext4|xfs [--without-sync]

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
_SIZES = {"ext4": 96 << 20, "xfs": 320 << 20}


def _sh(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Disk:
    """A file system of its own, in a file."""

    def __init__(self, scratch: Path, kind: str, options: str = "") -> None:
        self._image = scratch / "disk.img"
        self.root = scratch / "disk"
        self.root.mkdir()
        with self._image.open("wb") as image:
            image.truncate(_SIZES[kind])
        _sh(f"mkfs.{kind}", "-q", str(self._image))
        # The system writes nothing back by itself for as long as a cut can take; XFS waits 30 s.
        self._options = options or ("loop,commit=300" if kind == "ext4" else "loop")

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        _sh("mount", "-o", self._options, str(self._image), str(self.root))
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
    from surehold.storage.sqlite import connections as sqlite_pool

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


def _enough(heard: bytes, first: bool, lines: int) -> bool:
    return b'["saved"' in heard if first else heard.count(b"\n") >= lines


def _lines(data: bytes) -> list[list[Any]]:
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def _live(
    disk: Disk, medium: str, directory: Path, seed: int, *, first: bool, sync: bool
) -> list[list[Any]]:
    """Let a process work, cut the power, and give what it had told by then.

    *first*: the cut comes as soon as the first save of all was acknowledged. Otherwise it is
    stopped before the cut every other time, so that all it told counts; else the cut finds it in
    the middle of whatever it does, and what it told after the last look counts as begun only.
    """
    chance = random.Random(seed)
    pid, ear = _start(medium, directory, seed, sync=sync)
    heard = b""
    wanted = chance.randint(10, 10 + _MOST_LINES)
    with ear:
        ear.settimeout(500)
        while not _enough(heard, first, wanted) and (data := ear.recv(1 << 16)):
            heard += data
        time.sleep(0 if first else chance.random() * 0.01)
        stopped = first or chance.random() < 0.5
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


def main(medium: str, cuts: int, scratch: Path, kind: str, *, sync: bool) -> None:
    """Cut after cut; every other directory is the storage's to make, and every other one is cut
    as soon as something was acknowledged in it."""
    disk = Disk(scratch, kind)
    left = began = 0
    for cut in range(cuts):
        fresh = left == 0
        if fresh:
            began += 1
            told, left = Told(), _LIVES
            name = f"runs-{cut}/of/the/storage" if began % 2 else f"runs-{cut}"
        left -= 1
        before = len(told.acknowledged)
        with disk.mounted() as root:
            directory = root / name
            if fresh and not began % 2:
                directory.mkdir()
                # The directory is the user's, who made it long ago.
                _sh("sync", "-f", str(root))
            first = fresh and began % 4 < 2
            lines = _live(disk, medium, directory, cut, first=first, sync=sync)
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
    medium, cuts, scratch, kind, *rest = sys.argv[1:]
    main(medium, int(cuts), Path(scratch), kind, sync="--without-sync" not in rest)
