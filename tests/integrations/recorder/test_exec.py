"""`surehold exec`: unchanged programs, killed and started again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.model_server import ModelServer, model_server

import surehold
from surehold.views.forks import fork_origins, read_tree

CALLS = 6
AGENT = """\
import os, sys
import httpx

client = httpx.Client(headers={"Authorization": "Bearer sk-secret", "X-Pid": str(os.getpid())})
url = os.environ["MODEL"] + "/v1/chat/completions"
told = [os.environ.get("SAID", "hello")]
for n in range(int(sys.argv[1])):
    body = {"model": "m", "messages": told}
    if n % 2:
        with client.stream("POST", url, json={**body, "stream": True}) as streamed:
            text = "".join(f"{len(one)} {one}" for one in streamed.iter_raw())
    else:
        text = client.post(url, json=body).json()["choices"][0]["message"]["content"]
    told = [*told, text]
print("\\n".join(told))
"""
NODE = """\
const url = process.env.OPENAI_BASE_URL + "/chat/completions";
const told = [];
for (let n = 0; n < Number(process.argv[2]); n++) {
  const stream = n % 2 === 1;
  const body = JSON.stringify({ model: "m", messages: [...told], stream });
  const headers = { "content-type": "application/json", "x-pid": String(process.pid) };
  const answer = await fetch(url, { method: "POST", headers, body });
  told.push(await answer.text());
}
console.log(told.join("\\n"));
"""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


class Shell:
    """Runs `surehold` on a storage of its own."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.folder, self.server = folder, server
        self.storage = f"sqlite:///{folder}/runs.db"
        (folder / "agent.py").write_text(AGENT)

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        env = {**os.environ, "MODEL": self.server.url, "SUREHOLD_STORAGE": self.storage, **environ}
        return subprocess.Popen(
            [sys.executable, "-m", "surehold", *words],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **environ)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def exec(self, *words: str, command: Any = None, **environ: str) -> Any:
        command = command or [sys.executable, "agent.py", str(CALLS)]
        return self.run("exec", "--run", "mine", *words, "--", *command, **environ)

    def kill_at(self, number: int, phase: str) -> None:
        """Kill the program, which sends its process id with each request."""

        def kill() -> None:
            told = {key.lower(): value for key, value in self.server.headers[-1].items()}
            os.kill(int(told["x-pid"]), signal.SIGKILL)

        self.server.kill[number, phase] = kill


@pytest.fixture
def shell(tmp_path: Path, server: ModelServer) -> Shell:
    return Shell(tmp_path, server)


def test_a_program_that_is_killed_at_each_call_completes_by_itself(
    shell: Shell, server: ModelServer
) -> None:
    """Each kill costs one call at most, and the output is that of the calls that counted."""
    at, kills = 1, 0
    for phase in ("asked", "midway", "asked", "midway", "asked", "midway"):
        shell.kill_at(at, phase)
        at, kills = at + 2, kills + 1
    done = shell.exec("--restart", "20", "--backoff", "0", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert told["starts"] <= kills + 1 and told["recorded"] == CALLS
    assert server.count <= CALLS + kills
    asked = server.requests[-1]["messages"]
    assert done.stdout.startswith("\n".join(asked))
    assert shell.run("runs").stdout.split("\n")[1].split()[2:4] == ["completed", str(CALLS)]


def test_a_program_that_is_killed_with_its_launcher_is_resumed(
    shell: Shell, server: ModelServer
) -> None:
    process = shell.start("exec", "--run", "mine", "--", sys.executable, "agent.py", str(CALLS))
    server.kill[4, "midway"] = lambda: os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    assert (process.returncode, server.count) == (-signal.SIGKILL, 4)
    done = shell.exec()
    assert done.returncode == 0, done.stderr
    assert server.count == CALLS + 1
    assert re.search(
        r"3 of 3 recorded calls answered from the journal in [\d.]+ s \(saved .*\);"
        r" live from call 4",
        done.stderr,
    )
    assert "sk-secret" not in "".join(
        path.read_bytes().decode("latin-1") for path in shell.folder.glob("runs.db*")
    )
    again = shell.exec()
    assert again.returncode == 2 and "run 'mine' is completed" in again.stderr
    assert server.count == CALLS + 1

    replayed = shell.run("replay", "mine", "--", sys.executable, "agent.py", str(CALLS))
    assert (replayed.returncode, replayed.stdout) == (0, done.stdout), replayed.stderr
    saved = json.loads(shell.run("savings", "--json").stdout)
    assert saved["total"]["calls"] == 3


def test_a_changed_request_stops_the_run_and_is_explained(
    shell: Shell, server: ModelServer
) -> None:
    command = [sys.executable, "agent.py", "2"]
    failing = "import runpy, sys; sys.argv = ['agent.py', '2']; runpy.run_path('agent.py'); 1 / 0"
    assert shell.exec(command=[sys.executable, "-c", failing]).returncode == 1
    assert server.count == 2
    done = shell.exec(command=command, SAID="hi at 2026-11-18 20:00:01")
    assert done.returncode == 8 and server.count == 2
    last = done.stderr[done.stderr.rindex("surehold: ") :].splitlines()  # what exec itself says
    assert "    body.messages[0]" in last and '      recorded  "hello"' in last
    live = shell.exec("--on-divergence", "live", command=command, SAID="hi")
    assert live.returncode == 0 and server.count == 4


def test_children_of_the_program_join_its_run(shell: Shell, server: ModelServer) -> None:
    (shell.folder / "parent.py").write_text(
        """\
import multiprocessing, os, subprocess, sys

def ask(text):
    import httpx
    body = {"model": "m", "messages": [text]}
    return httpx.post(os.environ["MODEL"] + "/v1/chat/completions", json=body).status_code

if __name__ == "__main__":
    assert ask("parent") == 200
    subprocess.run([sys.executable, "-c", "import parent; parent.ask('child')"], check=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(ask, ["spawned"])
    print(os.environ.get("PYTHONPATH") is not None, "sitecustomize" in sys.modules)
    if "die" in sys.argv:
        sys.exit(3)
"""
    )
    folder = shell.folder / ("long" * 30)  # no socket fits into it
    folder.mkdir()
    first = shell.exec(command=[sys.executable, "parent.py", "die"], TMPDIR=str(folder))
    assert (first.returncode, server.count) == (3, 3), first.stderr
    assert "run mine has 3 calls, and the same command with --run mine resumes it" in first.stderr
    again = shell.exec(command=[sys.executable, "-m", "parent"])
    assert (again.returncode, server.count) == (0, 3), again.stderr


def test_what_cannot_be_recorded_is_said(shell: Shell, server: ModelServer) -> None:
    done = shell.exec(command=[sys.executable, "-I", "-c", "print(1)"])
    assert done.returncode == 0 and "nothing was recorded" in done.stderr
    silent = shell.run("exec", "--", sys.executable, "-c", "print('$(id)')")
    assert silent.returncode == 0 and "no model call was seen" in silent.stderr
    assert re.search(r"; --run [\w.-]+ resumes it", silent.stderr)
    missing = shell.run("exec", "--run", "other", "--", "no-such-command")
    assert missing.returncode == 4 and "no-such-command" in missing.stderr
    unnamed = shell.run("exec", "--", "no-such-command")
    assert "python my_agent.py" in unnamed.stderr and "resumes it" not in unnamed.stderr


def test_frozen_sources_are_the_same_in_every_start(shell: Shell, server: ModelServer) -> None:
    (shell.folder / "chance.py").write_text(
        """\
import datetime, os, random, sys, time, uuid
import httpx

told = [str(datetime.datetime.now()), str(datetime.date.today()), time.time()]
told += [random.random(), str(uuid.uuid4()), str({"a", "b", "c", "d"})]
assert isinstance(datetime.datetime.now(), datetime.datetime)
assert isinstance(datetime.date(2026, 1, 1), datetime.date)
body = {"model": "m", "messages": told}
httpx.post(os.environ["MODEL"] + "/v1/chat/completions", json=body)
sys.exit(int(sys.argv[1]))
"""
    )
    # A run keeps the options that it began with.
    for code, options in ((1, ("--freeze", "time,random", "--freeze", "uuid")), (0, ())):
        done = shell.exec(*options, command=[sys.executable, "chance.py", str(code)])
        assert (done.returncode, server.count) == (code, 1), done.stderr
    replayed = shell.run("replay", "mine", "--", sys.executable, "chance.py", "0")
    assert (replayed.returncode, server.count) == (0, 1), replayed.stderr


def test_a_replay_from_a_call_continues_live_in_a_fork(shell: Shell, server: ModelServer) -> None:
    assert shell.exec().returncode == 0
    options = ("--from", "4", "--set", "model=other", "--as", "fork")
    command = ("--", sys.executable, "agent.py", str(CALLS))
    done = shell.run("replay", "mine", *options, *command)
    assert done.returncode == 0, done.stderr
    assert [body["model"] for body in server.requests] == ["m"] * CALLS + ["other"] * 3
    offline = shell.run("replay", "fork", *command)
    assert offline.returncode == 8 and 'recorded  "other"' in offline.stderr
    with surehold.CheckpointManager(shell.storage) as manager:
        (origin,) = fork_origins(manager.storage).values()
        assert (origin.run_id, origin.step) == ("mine", 3)
        assert [run.run_id for run in read_tree(manager, "fork").runs] == ["mine", "fork"]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_node_program_is_recorded_by_the_proxy(shell: Shell, server: ModelServer) -> None:
    (shell.folder / "agent.mjs").write_text(NODE)
    command = ["node", "agent.mjs", "4"]
    url = f"{server.url}/v1"
    for number, phase in ((1, "asked"), (3, "midway"), (5, "asked")):
        shell.kill_at(number, phase)
    done = shell.exec("--restart", "9", "--backoff", "0", command=command, OPENAI_BASE_URL=url)
    assert done.returncode == 0, done.stderr
    assert server.count <= 4 + 3
    replayed = shell.run("replay", "mine", "--", *command, OPENAI_BASE_URL="http://127.0.0.1:9/v1")
    assert (replayed.returncode, replayed.stdout) == (0, done.stdout), replayed.stderr
    assert server.count <= 4 + 3


def test_a_signal_to_the_launcher_alone_stops_the_program(
    shell: Shell, server: ModelServer
) -> None:
    (shell.folder / "waits.py").write_text(
        """\
import os, httpx
body = {"model": "m", "messages": ["hello"]}
httpx.post(os.environ["MODEL"] + "/v1/chat/completions", json=body)
try:
    import time
    print("waits", flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    raise SystemExit(130)
"""
    )
    program = shell.start("exec", "--run", "mine", "--", sys.executable, "waits.py")
    assert program.stdout is not None
    assert program.stdout.readline() == "waits\n"
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=300)
    assert program.returncode == 130
    assert shell.run("runs").stdout.split("\n")[1].split()[2] == "interrupted"


PAYS = """\
import os, sys
import httpx

with httpx.Client(headers={"X-Pid": str(os.getpid())}) as client:
    chat = os.environ["MODEL"] + "/v1/chat/completions"
    text = client.post(chat, json={"model": "m", "messages": ["pay"]}).text
    try:
        paid = client.post(os.environ["MODEL"] + "/pay", json={"amount": 7})
        print(paid.status_code, paid.json())
    except httpx.HTTPError as error:
        print(type(error).__name__)
        sys.exit(3)
    sys.exit("fail" in sys.argv)
"""


@pytest.fixture
def paying(shell: Shell, server: ModelServer) -> list[str]:
    (shell.folder / "pays.py").write_text(PAYS)
    return ["--record", f"{server.url}/pay*", "--in-doubt", "ask", "--", sys.executable, "pays.py"]


@pytest.mark.parametrize(
    ("settled", "said", "asked"),
    [
        (['{"paid": 7}'], "200 {'paid': 7}", 1),
        (["--error", "no money"], "422 {'error': 'no money'}", 1),
        (["--repeat"], "200 {'path': '/pay', 'number': 2}", 2),
    ],
    ids=["answer", "error", "repeat"],
)
def test_a_person_decides_on_a_request_that_may_have_happened(
    shell: Shell,
    server: ModelServer,
    paying: list[str],
    settled: list[str],
    said: str,
    asked: int,
) -> None:
    """Killed while the payment is made, the run asks, and pays again only if it is told to."""

    def kill() -> None:
        os.kill(int(server.other_headers[-1]["X-Pid"]), signal.SIGKILL)

    server.at_other = kill
    begun = shell.run("exec", "--run", "mine", "--restart", "3", "--backoff", "0", *paying)
    assert begun.returncode == 20 and "it is not known whether" in begun.stderr, begun.stderr
    again = shell.run("exec", "--run", "mine", "--", *paying[-2:])
    assert again.returncode == 20 and "surehold answer mine" in again.stderr
    assert (server.count, len(server.other)) == (1, 1)
    listed = shell.run("pending").stdout
    assert "/pay" in listed and '"amount":7' in shell.run("pending", "--json").stdout.replace(
        '\\"', '"'
    ).replace(": 7", ":7")
    assert shell.run("runs").stdout.split("\n")[1].split()[2] == "waiting"

    assert shell.run("answer", "mine", *settled).returncode == 0
    done = shell.run("exec", "--run", "mine", *paying)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
    assert (server.count, len(server.other)) == (1, asked)
    replayed = shell.run(
        "replay", "mine", "--", *paying[-2:]
    )  # pays nothing: the run knows --record
    assert (replayed.returncode, replayed.stdout.strip()) == (0, said), replayed.stderr
    assert len(server.other) == asked


def test_a_request_that_was_answered_or_refused_is_not_in_doubt(
    shell: Shell, server: ModelServer, paying: list[str]
) -> None:
    server.refuse_other = [503]
    refused = shell.run("exec", "--run", "mine", *paying, "fail")
    assert (refused.returncode, refused.stdout[:3]) == (1, "503")
    paid = shell.run("exec", "--run", "mine", *paying, "fail")
    assert (paid.returncode, paid.stdout[:3]) == (1, "200")
    done = shell.run("exec", "--run", "mine", *paying)
    assert (done.returncode, done.stdout) == (0, paid.stdout)
    assert (server.count, len(server.other)) == (1, 2)


def test_a_request_whose_connection_broke_is_in_doubt(
    shell: Shell, server: ModelServer, paying: list[str]
) -> None:
    def cut() -> None:
        raise ConnectionError("the server fails")

    server.at_other = cut
    begun = shell.run("exec", "--run", "mine", *paying)
    assert (begun.returncode, begun.stdout) == (20, "RemoteProtocolError\n"), begun.stderr
    forced = [word if word != "ask" else "retry" for word in paying]
    done = shell.run("exec", "--run", "mine", *forced)
    assert done.returncode == 0 and done.stdout.startswith("200"), done.stderr
    assert (server.count, len(server.other)) == (1, 2)
