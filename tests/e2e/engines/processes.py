"""Processes of a test session: found by the network they share, stopped and killed by id."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_CLONE_NEWNET, _CLONE_NEWUTS = 0x40000000, 0x04000000
_SIOCSIFFLAGS = 0x8914
_UP_AND_RUNNING = 0x41


def leave_the_network() -> str:
    """Give this process and what it starts a network of their own, with loopback alone.

    Ray speaks on the addresses of a host, not on loopback, where there are others. Returns why
    it cannot be done, or nothing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        return "only Linux has network namespaces"
    if libc.unshare(_CLONE_NEWNET) != 0:
        return f"no network namespace: {os.strerror(ctypes.get_errno())}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _UP_AND_RUNNING))
    return ""


def become_host(name: str) -> None:
    """Give what this thread starts from now on another host name, as another machine has.

    A process knows that another one of its own host is dead. Of those on other hosts it must wait
    for the leases to end.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUTS) != 0:
        raise OSError(ctypes.get_errno(), "no namespace for a host name")
    socket.sethostname(name)


def clean_up_after(owner: int) -> subprocess.Popen[bytes]:
    """Have all that was started killed once the process *owner* has ended, however it did."""
    code = (
        "import time; from pathlib import Path; from tests.e2e.engines import processes\n"
        f"while Path('/proc/{owner}').exists(): time.sleep(0.5)\n"
        "processes.kill(processes.started())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.DEVNULL
    )


def started() -> list[int]:
    """All processes in the network of this one but itself: what the session started."""
    own = os.readlink("/proc/self/ns/net")
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if os.readlink(path) == own:
                found.append(int(path.parts[2]))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def tree(*roots: int) -> list[int]:
    """Processes and all that they started, of those that are still there."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: list[int] = []
    left = list(roots)
    while left:
        pid = left.pop()
        found.append(pid)
        left.extend(children.get(pid, ()))
    return [pid for pid in found if Path(f"/proc/{pid}").exists()]


def is_live(pid: int) -> bool:
    """True if a process is there and has not ended, its parent having looked or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, of which some may have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def stop(pids: Iterable[int]) -> None:
    """Freeze processes."""
    send(pids, signal.SIGSTOP)


def wake(pids: Iterable[int]) -> None:
    """Let frozen processes continue."""
    send(pids, signal.SIGCONT)


def kill(pids: Iterable[int]) -> None:
    """Kill processes."""
    send(pids, signal.SIGKILL)


def until(condition: Callable[[], object], what: str, seconds: float = 300) -> None:
    """Wait until *condition* is true."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"{what}: not within {seconds} s"
        time.sleep(0.1)
