"""A file system in memory that is too small for what a worker wants to store.

Run as root in a mount namespace of its own (``unshare --mount``)::

    python -m tests.crash.full MEDIUM room|inodes SCRATCH SHORT

It prints a JSON list for every size that was tried: how many saves were acknowledged, the errors
that the worker gave up with, and what was wrong once there was room again, if anything.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.crash.judging import Told
from tests.crash.media import spread
from tests.crash.processes import ForkServer

PAGE = 4096
"""The kernel gives room in memory by such pages."""
LOG = 10
"""A database and its log take so many times the room of the database at the end."""
_TARGET = "tests.crash.workload:work_while_it_lasts"
_ENOUGH = {"room": f"size={64 << 20}", "inodes": "nr_inodes=10000"}


@contextmanager
def _mounted(root: Path, limit: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", limit, "tmpfs", str(root)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(root)], check=True)


def _limits(kind: str, root: Path, server: ForkServer, medium: str) -> list[str]:
    """Every limit from nothing to what the workload takes."""
    with _mounted(root, _ENOUGH[kind]):
        lines = _work(server, medium, root)
        assert lines[-1] == ["done"] and ["gave up"] not in [line[:1] for line in lines], lines[-2:]
        files = [root, *root.rglob("*")]
        pages = sum(path.stat().st_blocks * 512 for path in files) // PAGE
    # While it worked there were files that are gone: logs, temporary ones.
    if kind == "inodes":
        return [f"nr_inodes={count}" for count in range(2, len(files) + 8)]
    most = LOG * pages if medium == "sqlite" else pages + 8
    return [f"size={count * PAGE}" for count in range(1, most)]


def _work(server: ForkServer, medium: str, root: Path) -> list[list[Any]]:
    with server.start(_TARGET, medium, str(root), 3) as child:
        lines = child.hear_all()
        assert child.wait() == 0, lines[-1:]
    return lines


def main(medium: str, kind: str, scratch: Path, short: int) -> None:
    server = ForkServer()
    root = scratch / "small"
    root.mkdir()
    for limit in spread(_limits(kind, root, server, medium), short):
        told, errors, wrong = Told(), [], ""
        with _mounted(root, limit):
            lines = _work(server, medium, root)
            more = f"remount,{_ENOUGH[kind]}"
            subprocess.run(["mount", "-o", more, str(root)], check=True)
            try:
                told.hear(lines)
                errors = [line[1] for line in lines if line[0] == "gave up"]
                told.check(medium, root)
                told.go_on(medium, root, 10_000)
            except Exception as error:
                wrong = f"{limit}: {type(error).__name__}: {error}"
        print(json.dumps([len(told.acknowledged), errors, wrong]), flush=True)
    server.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
