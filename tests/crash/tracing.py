"""strace as a source of faults: a signal or an error at exactly one system call of a worker."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.crash.processes import ForkServer

__all__ = ["CHANGING", "READING", "count_calls", "inject", "need_strace"]

CHANGING = (
    *("openat", "pwrite64", "write", "fsync", "fdatasync", "ftruncate", "rename", "renameat"),
    *("renameat2", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
)
"""The calls by which files come to be others than before. A kill at any other call leaves on the
disk what a kill at the next of these would."""
READING = ("pread64", "fstat", "newfstatat", "stat", "lstat", "statx", "getdents64")
"""The calls that only look. Those that let go of something (close, flock, fcntl) are in neither
list: strace does not make the calls that it fails, and what should have been let go of would stay
held, as it does on no system."""

_PATIENCE = 500


def need_strace() -> None:
    """Skip, and say why, where faults cannot be injected."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: system calls cannot be made to fail")


def count_calls(
    server: ForkServer, target: str, arguments: tuple[Any, ...], calls: tuple[str, ...], log: Path
) -> Counter[str]:
    """How often a worker makes each of *calls* on the thread that makes the most of them."""
    told, code = _run(server, target, arguments, ["-e", f"trace={_set(calls)}", "-o", str(log)])
    assert code == 0 and told[-1] == ["done"], told[-1]
    counted: dict[str, Counter[str]] = {}
    for thread, call in re.findall(r"^(\d+) +(\w+)\(", log.read_text(), re.MULTILINE):
        counted.setdefault(call, Counter())[thread] += 1
    return Counter({call: max(threads.values()) for call, threads in counted.items()})


def inject(
    server: ForkServer, target: str, arguments: tuple[Any, ...], call: str, fault: str, when: str
) -> tuple[list[list[Any]], int]:
    """Run a worker with *fault* at its *when*th *call*: what it told, and its exit code.

    *when* is a number; with a plus sign behind it, every later call is meant as well.
    """
    return _run(
        server,
        target,
        arguments,
        ["-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={when}", "-o", "/dev/null"],
    )


def _set(calls: tuple[str, ...]) -> str:
    return ",".join(f"?{call}" for call in calls)


def _run(
    server: ForkServer, target: str, arguments: tuple[Any, ...], options: list[str]
) -> tuple[list[list[Any]], int]:
    with server.start(target, *arguments, begin=False) as child:
        tracer = subprocess.Popen(
            ["strace", "-f", "-p", str(child.pid), *options], stderr=subprocess.PIPE, text=True
        )
        with tracer:
            assert tracer.stderr is not None
            first = tracer.stderr.readline()
            if "attached" not in first:
                tracer.kill()
                pytest.skip(f"strace cannot attach to a process here: {first.strip()}")
            try:
                child.begin()
                return child.hear_all(_PATIENCE), child.wait()
            finally:
                child.kill()
