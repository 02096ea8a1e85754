"""Workers that can be killed, and what they told through a socket that outlives them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

__all__ = ["Child", "ForkServer", "child_environment"]


def child_environment() -> dict[str, str]:
    """The environment of a process that imports what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Child:
    """A worker. What it told is read even when it is dead."""

    def __init__(self, server: ForkServer, pid: int, ear: socket.socket, go: int) -> None:
        self.pid = pid
        self._server = server
        self._ear = ear
        self._go = go
        self._rest = b""
        self.exit_code: int | None = None

    def begin(self) -> None:
        """Let it begin."""
        os.write(self._go, b"!")

    def hear_until(
        self, last: Callable[[list[Any]], bool], seconds: float = 500
    ) -> list[list[Any]]:
        """What it tells, up to the first line that *last* is true of, or to its end."""
        heard: list[list[Any]] = []
        self._ear.settimeout(seconds)
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                heard.append(json.loads(line))
                if last(heard[-1]):
                    return heard
            data = self._ear.recv(1 << 20)
            if not data:
                return heard
            self._rest += data

    def hear(self, lines: int) -> list[list[Any]]:
        """So many lines, or as many as it tells."""
        left = iter(range(lines - 1, -1, -1))
        return self.hear_until(lambda line: next(left) == 0) if lines > 0 else []

    def hear_all(self, seconds: float = 500) -> list[list[Any]]:
        """What it tells until it ends; a line that its end cut off does not count."""
        return self.hear_until(lambda line: False, seconds)

    def kill(self) -> None:
        """End it as the system does when memory runs out, and wait until it is gone."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        """Its exit code once it ended; minus the signal if it was killed."""
        if self.exit_code is None:
            self.exit_code = self._server.ask("wait", self.pid)
        return self.exit_code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._ear.close()
        os.close(self._go)


class ForkServer:
    """Starts functions in processes of their own, some milliseconds each.

    *modules* are imported beforehand.
    """

    def __init__(self, *modules: str) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.crash.forkserver"),
                    *(str(theirs.fileno()), *modules),
                ],
                pass_fds=[theirs.fileno()],
                env=child_environment(),
            )
        self._channel.settimeout(500)
        if self._channel.recv(100) != b'"ready"':
            self.close()
            raise RuntimeError(f"the fork server ended with {self._process.returncode}")

    def start(self, target: str, *arguments: Any, begin: bool = True) -> Child:
        """Run ``module:function`` with *arguments*, at once or when told to `Child.begin`."""
        ear, mouth = socket.socketpair()
        wait, go = os.pipe()
        with mouth:
            pid = self.ask("start", target, *arguments, fds=[mouth.fileno(), wait])
        os.close(wait)
        child = Child(self, pid, ear, go)
        if begin:
            child.begin()
        return child

    def ask(self, *request: Any, fds: list[int] | None = None) -> Any:
        socket.send_fds(self._channel, [json.dumps(request).encode()], fds or [])
        answer = self._channel.recv(1 << 16)
        if not answer:
            raise RuntimeError("the fork server is gone")
        return json.loads(answer)

    def close(self) -> None:
        self._channel.close()
        self._process.wait(timeout=500)
