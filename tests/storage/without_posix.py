"""A program on a Python without the names that only POSIX systems have; run by `test_machine.py`.

The standard library and the drivers are imported first: on a system without these names they have
other code. What is taken away afterwards is missing for Surehold.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import getpass
import io
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid

MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty")
OS = (
    "O_ACCMODE O_CLOEXEC O_DIRECTORY O_DSYNC O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC"
    " WNOHANG chown chroot fchdir fchmod fchown fdatasync fork forkpty getegid geteuid getgid"
    " getgroups getloadavg getpgid getpgrp getpriority getresuid getsid getuid getxattr initgroups"
    " killpg lchown lockf mkfifo mknod nice openpty posix_fadvise posix_fallocate posix_spawn pread"
    " preadv pwrite pwritev readv register_at_fork sched_getaffinity sched_yield sendfile setpgid"
    " setsid setuid sync sysconf uname wait wait3 wait4 waitid writev"
)
SIGNALS = "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2"

NIGHTLY = """
import surehold

@surehold.step
def doubled(number: int) -> int:
    return 2 * number

@surehold.workflow
def double(number: int) -> int:
    return doubled(number)
"""


def take_away() -> None:
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in ((os, OS), (signal, SIGNALS)):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in ("supports_dir_fd", "supports_fd", "supports_follow_symlinks"):
        setattr(os, name, set())
    opened = os.open

    def open_file(path: object, *options: int, dir_fd: object = None) -> int:
        assert dir_fd is None, "no directories are open here"
        if isinstance(path, str | os.PathLike) and os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *options)  # type: ignore[arg-type]

    def no_handler(*_: object) -> None:
        raise NotImplementedError

    os.open = open_file  # type: ignore[assignment]
    asyncio.AbstractEventLoop.add_signal_handler = no_handler  # type: ignore[method-assign]
    asyncio.SelectorEventLoop.add_signal_handler = no_handler  # type: ignore[method-assign]


def main(address: str) -> None:
    import surehold
    from surehold.__main__ import main as command
    from surehold.testing.scripted import ScriptedModel

    calls: list[str] = []

    def call(text: str) -> str:
        calls.append(text)
        return text.upper()

    def broken(text: str) -> str:
        if calls.count(text) == 0:
            calls.append(text)
            raise KeyboardInterrupt
        return call(text)

    with contextlib.suppress(KeyboardInterrupt), surehold.run("loop", storage=address) as run:
        for item in run.each(["a", "b"]):
            run.state[item] = run.call(broken if item == "b" else call, item)
    with surehold.run("loop", storage=address) as run:
        for item in run.each(["a", "b"]):
            run.state[item] = run.call(broken if item == "b" else call, item)
    assert (run.status, run.state, calls) == ("completed", {"a": "A", "b": "B"}, ["a", "b", "b"])

    @surehold.workflow(storage=address)
    async def report(topic: str) -> str:
        return f"{topic}, approved by {await surehold.wait_for('approval')}"

    assert asyncio.run(report.run("kelp", run_id="kelp", wait=False)).status == "waiting"
    surehold.answer("kelp", "approval", "Ann", storage=address)
    result = asyncio.run(report.resume("kelp", wait=False))
    assert result.value == "kelp, approved by Ann"

    graph = surehold.StateGraph("double", storage=address)
    graph.add_node("double", lambda state: {"number": state["number"] * 2})
    graph.set_entry_point("double")
    graph.set_exit_point("double")
    assert graph.run_sync({"number": 4}, run_id="graph")["number"] == 8

    agent = surehold.Agent("agent", model=ScriptedModel(lambda _: "a brown alga"), storage=address)
    assert asyncio.run(agent.run("What is kelp?")).answer == "a brown alga"

    pathlib.Path("nightly.py").write_text(NIGHTLY)
    sys.path.insert(0, os.getcwd())
    os.environ["SUREHOLD_STORAGE"] = address
    import nightly  # type: ignore[import-not-found]

    nightly.double.options(run_id="queued").start(4)
    serves = command(["-s", address, "worker", "--until-idle", "nightly"])
    assert serves == 0, serves
    assert nightly.double.result("queued").value == 8

    with surehold.CheckpointManager(address) as manager:
        assert all(manager.verify())
        runs = {info.run_id for info in manager.storage.runs(surehold.RunQuery())}
    assert runs >= {"loop", "kelp", "graph", "queued"}
    try:
        surehold.CheckpointManager("file:runs")
    except surehold.errors.UsageError as error:
        assert "fcntl" in str(error), error
    if address == "memory":
        return
    for words in (["runs"], ["log", "loop"], ["status"], ["verify"], ["doctor"]):
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            status = command(["-s", address, *words])
        assert status == 0 and told.getvalue(), (words, status)


if __name__ == "__main__":
    for module in (concurrent.futures, getpass, multiprocessing, pathlib, shutil, subprocess):
        assert module
    for driver in ("apsw", "psycopg_pool", "redis", "zstandard", "msgspec", "rich", "stamina"):
        with contextlib.suppress(ImportError):
            __import__(driver)
    assert tempfile.gettempdir() and uuid.uuid4()
    take_away()
    main(sys.argv[1])
    print("done")
