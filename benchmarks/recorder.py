"""Cost of recorded model calls beside plain ones, of their replay, and of starting `exec`."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import httpx

import surehold
from benchmarks.report import Line
from benchmarks.workload import BareCommits, Times, settings_of
from surehold import SQLiteStorage

__all__ = ["measure"]

_CALLS = 150
_REPLAYED = 1000
_STARTS = 7
_SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "kelp " * 40}
        usage = {"prompt_tokens": 12, "completion_tokens": 40}
        told = {"model": "m", "choices": [{"message": message}], "usage": usage}
        data = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
_PROGRAM = """
import os, sys
import httpx

with httpx.Client() as client:
    for n in range(int(sys.argv[1])):
        body = {"model": "m", "messages": [{"role": "user", "content": f"question {n}"}]}
        client.post(os.environ["MODEL"], json=body).raise_for_status()
"""


def measure(directory: Path) -> Iterator[Line]:
    """Compare calls with and without a recording, in turns, to a server of another process."""
    with _server() as url:
        yield from _in_process(directory, url)
        yield from _under_exec(directory, url)


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1/chat/completions"
        finally:
            process.kill()


def _ask(client: httpx.Client, url: str, number: int) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": f"question {number}"}]}
    client.post(url, json=body).raise_for_status()


def _in_process(directory: Path, url: str) -> Iterator[Line]:
    times, spent = Times(), {"plain": 0.0, "recorded": 0.0}
    other = url.replace("/v1/chat/completions", "/plain")  # no path of a model
    with SQLiteStorage(directory / "runs.db") as storage, httpx.Client() as client:
        bare = BareCommits(directory / "bare.db", settings_of(storage))
        with surehold.record("bench", storage=storage):
            for number in range(_REPLAYED):
                for what, address in (("plain", other), ("recorded", url)):
                    began = time.process_time()
                    times.time(what, partial(_ask, client, address, number))
                    spent[what] += time.process_time() - began
                if number < _CALLS:
                    times.time("bare", partial(bare.commit, b"x" * 1200))
        bare.close()
        began = time.perf_counter()
        with surehold.replay("bench", storage=storage):
            for number in range(_REPLAYED):
                _ask(client, url, number)
        replayed = time.perf_counter() - began
    plain, recorded, commit = map(times.median, ("plain", "recorded", "bare"))
    more = (spent["recorded"] - spent["plain"]) / _REPLAYED * 1e3
    took = f"{recorded * 1e3:.2f} ms beside {plain * 1e3:.2f} ms and {commit * 1e3:.2f} ms"
    yield Line(
        "CPU of a recorded call over the plain call", more, 2, unit=" ms", note="in the process"
    )
    yield Line(
        "recorded call - plain call - bare commit",
        (recorded - plain - commit) * 1e3,
        2,
        unit=" ms",
        note=took,
    )
    yield Line(f"replay of {_REPLAYED:,} calls", replayed, 5, unit=" s")


def _under_exec(directory: Path, url: str) -> Iterator[Line]:
    (directory / "program.py").write_text(textwrap.dedent(_PROGRAM))
    env = {**os.environ, "MODEL": url, "SUREHOLD_STORAGE": f"sqlite:///{directory}/exec.db"}
    program = [sys.executable, "program.py"]

    def spend(*command: str) -> tuple[float, float]:
        """Seconds and CPU seconds of a command and its children."""
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, cwd=directory, env=env, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return time.perf_counter() - began, cpu

    def under(run_id: str, *command: str) -> list[str]:
        return [sys.executable, "-m", "surehold", "exec", "--run", run_id, "--", *command]

    plain = [spend(*program, str(n))[1] for n in (0, _CALLS)]
    recorded = [spend(*under(f"calls-{n}", *program, str(n)))[1] for n in (0, _CALLS)]
    more = ((recorded[1] - recorded[0]) - (plain[1] - plain[0])) / _CALLS * 1e3
    yield Line(
        "CPU of a recorded call over the plain call, exec",
        more,
        2,
        unit=" ms",
        note="both processes",
    )
    replay = [sys.executable, "-m", "surehold", "replay", f"calls-{_CALLS}", "--", *program]
    seconds, _ = spend(*replay, str(_CALLS))
    yield Line(f"surehold replay of {_CALLS} calls, all of it", seconds, 5, unit=" s")
    inside = {**env, **_joined(directory)}
    starts: dict[str, list[float]] = {"plain": [], "joined": [], "exec": []}
    for number in range(_STARTS):
        for what, command, environ in (
            ("plain", [*program, "0"], env),
            ("joined", [*program, "0"], inside),
            ("exec", under(f"start-{number}", *program, "0"), env),
        ):
            began = time.perf_counter()
            subprocess.run(command, cwd=directory, env=environ, check=True, capture_output=True)
            starts[what].append((time.perf_counter() - began) * 1e3)
    usual, joined, whole = (median(starts[what]) for what in ("plain", "joined", "exec"))
    note = f"{joined:.0f} ms beside {usual:.0f} ms"
    yield Line("start of a program that joins a run", joined - usual, 150, unit=" ms", note=note)
    yield Line("start of exec itself", whole - joined, None, unit=" ms", note="one per start")


def _joined(directory: Path) -> dict[str, str]:
    """The environment that `exec` gives a program."""
    (directory / "hello").mkdir()
    root = Path(surehold.__file__).parent / "integrations" / "recorder" / "injected"
    told = {"socket": "/nowhere", "record": [], "pass": [], "models": True, "freeze": {}}
    return {
        "PYTHONPATH": str(root),
        "SUREHOLD_EXEC": json.dumps(told),
        "SUREHOLD_HELLO": str(directory / "hello"),
    }
