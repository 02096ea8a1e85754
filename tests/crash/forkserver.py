"""A process that has imported everything and forks workers, so that each costs milliseconds.

Run with the number of a socket and the modules to import. A request is a JSON list:
``["start", "module:function", ...]`` comes with a socket that the worker tells through and one
that it waits on until it may begin, and is answered with its pid; ``["wait", pid]`` is answered
with its exit code.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import threading
import traceback
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

from tests.crash.media import DURABLE
from tests.crash.workload import work_through

_PR_SET_PTRACER = 0x59616D61


def _warm_up() -> None:
    """Have everything imported that a worker will need. No thread may be left to be forked."""
    for medium in DURABLE:
        with TemporaryDirectory() as directory:
            work_through(lambda *words: None, medium, directory, 0)
    for room in ("postgres", "redis"):
        import_module(f"surehold.storage.{room}.storage")
    assert threading.active_count() == 1, threading.enumerate()


def _allow_tracing() -> None:
    """Let strace attach where only parents may, as is the rule on many desktops."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PTRACER, -1, 0, 0, 0)


def _work(target: str, arguments: list[Any], told: int, go: int) -> None:
    """The life of a worker; never returns."""
    status = 1
    try:
        speaker = socket.socket(fileno=told)

        def tell(*words: Any) -> None:
            speaker.sendall(json.dumps(words).encode() + b"\n")

        _allow_tracing()
        os.read(go, 1)
        module, _, function = target.partition(":")
        try:
            getattr(import_module(module), function)(tell, *arguments)
            status = 0
        except BaseException:
            tell("crashed", traceback.format_exc())
    finally:
        os._exit(status)


def main(channel: socket.socket, modules: list[str]) -> None:
    """Serve until the other side is gone."""
    _warm_up()
    for module in modules:
        import_module(module)
    channel.send(b'"ready"')
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 1 << 16, 2)
        if not data:
            return
        request = json.loads(data)
        if request[0] == "wait":
            _, status = os.waitpid(request[1], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                channel.close()
                _work(request[1], request[2:], *fds)
            for fd in fds:
                os.close(fd)
        channel.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
