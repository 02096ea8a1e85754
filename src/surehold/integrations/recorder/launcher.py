"""`surehold exec`: starts a program as it is, records its calls, and resumes it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from surehold.agents.models import shown
from surehold.core.policy import Ending, RunFacts, ending_of
from surehold.core.records import check_run_id, new_id
from surehold.engine.hooks import redacted, redacting_hooks
from surehold.engine.managers import CheckpointManager
from surehold.errors import Drained, Interrupted, NotFoundError, RunError, UsageError
from surehold.integrations.recorder.hub import Hub
from surehold.integrations.recorder.inside import Asked, Selection
from surehold.integrations.recorder.proxy import Proxy
from surehold.integrations.recorder.recording import MatchRules, Recording
from surehold.integrations.recorder.sessions import COMPLETED
from surehold.integrations.recorder.shelves import RunShelf, StoredCalls, Where

INJECTED = Path(__file__).parent / "injected"
FREEZABLE = ("time", "random", "uuid")
DIVERGED = 8
"""The exit code of a program whose requests fit the recording no longer."""
_PYTHONS = ("python", "pytest", "uv", "uvx", "pipx", "coverage", "pdm", "poetry", "hatch", "nox")
_LONGEST_PAUSE = 60.0
_LONGEST_FOLDER = 55
"""Letters of a folder in which the name of a local socket still fits: 104 with all of it."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A command, and how it is started, recorded and started again."""

    command: tuple[str, ...]
    selection: Selection = Selection()
    rules: MatchRules = MatchRules()
    proxy: Literal["auto", "on", "off"] = "auto"
    freeze: tuple[str, ...] = ()
    restart: int = 0
    """How often it is started again if it dies."""
    backoff: float = 1.0
    """Seconds before the first of these starts; each next pause is twice as long."""

    def __post_init__(self) -> None:
        if not self.command:
            raise UsageError(
                "no command is given", hint="surehold exec --run my-run -- python my_agent.py"
            )
        wrong = [one for one in self.freeze if one not in FREEZABLE]
        if wrong:
            raise UsageError(
                f"{wrong[0]!r} cannot be frozen", hint=f"give some of {', '.join(FREEZABLE)}"
            )

    @property
    def name(self) -> str:
        """The name that runs of the program share: its script or module, or the command.

        >>> Program(command=("python", "-u", "agents/kelp.py", "--deep")).name
        'kelp.py'
        >>> Program(command=("uv", "run", "--python", "3.13", "-m", "agents.kelp")).name
        'agents.kelp'
        >>> Program(command=("my-agent", "Compare kelp and dulse")).name
        'my-agent'
        """
        own, *words = self.command
        name = Path(own).name
        if not name.startswith(_PYTHONS) or "-c" in words:
            return name
        modules = [after for word, after in pairwise(words) if word == "-m"]
        if "pytest" in (name, *words):  # whose -m chooses tests
            modules = []
        scripts = [Path(word).name for word in words if word.partition("::")[0].endswith(".py")]
        plain = [Path(word).name for word in words if not word.startswith("-")]
        return next(iter(modules + scripts + plain * name.startswith("python")), name)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `exec` that its run keeps, by their names."""
        kept = {
            "record": list(self.selection.record),
            "pass": list(self.selection.passed),
            "freeze": list(self.freeze),
            "loose": self.rules.loose,
            "proxy": "" if self.proxy == "auto" else self.proxy,
        }
        return {name: value for name, value in kept.items() if value}

    def of_run(self, values: Mapping[str, Any]) -> Program:
        """This program with the options that its run began with, beside its own."""
        kept = values.get("options", {})
        return msgspec.structs.replace(
            self,
            selection=self.selection.beside(kept.get("record", ()), kept.get("pass", ())),
            rules=msgspec.structs.replace(
                self.rules, loose=self.rules.loose or kept.get("loose", False)
            ),
            freeze=tuple(dict.fromkeys([*self.freeze, *kept.get("freeze", ())])),
            proxy=kept.get("proxy", "auto") if self.proxy == "auto" else self.proxy,
        )


class ProgramEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a program."""

    run_id: str
    code: int
    status: str
    starts: int
    recorded: int
    """Calls that the run has now."""
    replayed: int
    live: int
    dollars: float
    """What replayed calls did not cost again."""
    seconds: float
    diverged: str = ""


def execute(
    program: Program, run_id: str, storage: Where, say: Callable[[str], object]
) -> ProgramEnd:
    """Start a program under a run, new or begun. *say* prints to people."""
    if shutil.which(program.command[0]) is None:
        raise NotFoundError(
            f"there is no command {program.command[0]!r}",
            hint="write it as in a shell: -- python my_agent.py, or -- ./my_agent",
        )
    facts: dict[str, Any] = {"command": without_secrets(program.command)}
    facts |= {"seed": random.randrange(1 << 32), "began": time.time()}
    if program.options:
        facts["options"] = program.options
    if program.rules.in_doubt:
        facts["in_doubt"] = program.rules.in_doubt
    shelf = RunShelf(check_run_id(run_id), storage, program.name, **facts)
    try:
        if shelf.completed:
            raise UsageError(
                f"run {run_id!r} is completed",
                hint=f"surehold replay {run_id} -- COMMAND runs a command on its recorded calls;"
                " another --run begins a new run",
            )
        if program.rules.in_doubt != "retry":
            check_doubt(shelf)
        return supervise(program, shelf, say)
    finally:
        shelf.close()


def without_secrets(command: Iterable[str]) -> list[str]:
    """The words of a command without what looks like a secret, or is called one.

    >>> print(*without_secrets(["env", "MY_TOKEN=one", "agent", "--api-key", "two", "--deep"]))
    env MY_TOKEN=[redacted:token] agent --api-key [redacted:api_key] --deep
    """
    hooks, made, option = redacting_hooks(), list[str](), ""
    for word in command:
        name, equals, value = word.partition("=")
        if equals:
            made.append(f"{name}={redacted({name: value}, hooks)[name]}")
        else:
            made.append(redacted({option: word}, hooks)[option])
        option = word if word.startswith("-") else ""
    return made


def check_doubt(shelf: RunShelf) -> None:
    """Save that the run waits, and raise `Interrupted`, if a request is in doubt."""
    try:
        shelf.check_doubt()
    except Interrupted as signal:
        shelf.end(ending_of(signal, RunFacts(run_id=shelf.run_id)), signal, 0, {"calls": 0})
        raise


def supervise(program: Program, shelf: RunShelf, say: Callable[[str], object]) -> ProgramEnd:
    """Start the program, again if it dies and may be, and save how it ended."""
    starts, pause = 0, program.backoff
    totals = {"replayed": 0, "live": 0, "dollars": 0.0, "seconds": 0.0}
    in_progress: list[str] = []
    while True:
        starts += 1
        start = ProgramStart(program, shelf, say)
        start.recording.expect(in_progress)
        code = start.run()
        told = start.recording.told()
        totals["replayed"] += told["calls"]
        totals["live"] += start.recording.live
        totals["dollars"] += told["dollars"]
        totals["seconds"] += told["seconds"]
        died = code != 0 and not start.stopped and not start.diverged
        if died and shelf.left_doubt() and program.rules.in_doubt != "retry":
            check_doubt(shelf)
        status = "running"
        if not start.diverged:
            status = _save_end(program, shelf, start, code)
        if not died or starts > program.restart:
            break
        say(f"{program.name} {_manner(code)}; it is started again in {pause:g} s")
        time.sleep(pause)
        in_progress += start.recording.in_progress()
        pause = min(pause * 2 or program.backoff, _LONGEST_PAUSE)
    if start.diverged:
        say(start.diverged)
        code = DIVERGED
    elif code and start.recording.count:
        calls = "1 call" if start.recording.count == 1 else f"{start.recording.count} calls"
        say(
            f"{program.name} {_manner(code)}; run {shelf.run_id} has {calls}, and the same command"
            f" with --run {shelf.run_id} resumes it"
        )
    elif start.is_empty:
        say(
            "nothing was recorded: no Python program joined and no request reached the proxy"
            " (--proxy on serves other programs; python -I and -E, tox and frozen programs"
            " leave the recorder out)"
        )
    elif code == 0 and not start.recording.count:
        say(
            "no model call was seen at httpx, requests, urllib3 and aiohttp (--record URL-PATTERN"
            " records other requests of theirs; urllib.request, WebSockets and gRPC are not seen)"
        )
    return ProgramEnd(
        run_id=shelf.run_id,
        code=code if code >= 0 else 128 - code,
        status=status,
        starts=starts,
        recorded=start.recording.count,
        replayed=int(totals["replayed"]),
        live=int(totals["live"]),
        dollars=totals["dollars"],
        seconds=totals["seconds"],
        diverged=start.diverged,
    )


def _manner(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"


def _save_end(program: Program, shelf: RunShelf, start: ProgramStart, code: int) -> str:
    error: BaseException | None = None
    ending: Ending = COMPLETED
    if code:
        text = f"{program.name} {_manner(code)}"
        error = Drained(text) if start.stopped else RunError(text)
        ending = ending_of(error, RunFacts(run_id=shelf.run_id, lost=shelf.lost()))
    shelf.end(ending, error, start.recording.count, start.recording.told())
    return ending.status


def replay_program(
    program: Program,
    source: str,
    storage: CheckpointManager,
    say: Callable[[str], object],
    *,
    fork: str | None = None,
) -> ProgramEnd:
    """Start a program on the recorded calls of the run *source*, which stays as it is.

    With `MatchRules.until`, the calls before that number are copied into a forked run, in which
    the program continues live.
    """
    calls = StoredCalls.of(source, storage)
    until = program.rules.until
    if until is None:
        return _replayed(program, calls, say)
    kept = [call for call in calls.calls() if call.number < until]
    run_id = fork or f"{source}-from-{until}-{new_id(time.time_ns(), os.urandom(8))[-6:]}"
    shelf = RunShelf(
        check_run_id(run_id), storage, program.name, origin=calls.origin(until), **calls.values
    )
    try:
        if not shelf.resumed:
            shelf.copy(kept)
        say(f"run {run_id}: {len(kept)} calls of {source}, then live")
        return supervise(program, shelf, say)
    finally:
        shelf.close()


def _replayed(program: Program, calls: StoredCalls, say: Callable[[str], object]) -> ProgramEnd:
    start = ProgramStart(program, calls, say)
    code = start.run()
    told, left = start.recording.told(), start.recording.left()
    if start.diverged:
        say(start.diverged)
        code = DIVERGED
    elif left and code == 0:
        say(f"{len(left)} recorded calls were not asked for, first call {left[0].number}")
        code = DIVERGED
    return ProgramEnd(
        run_id=calls.run_id,
        code=code if code >= 0 else 128 - code,
        status="completed" if code == 0 else "failed",
        starts=1,
        recorded=start.recording.count,
        replayed=start.recording.replayed,
        live=0,
        dollars=told["dollars"],
        seconds=told["seconds"],
        diverged=start.diverged,
    )


def changing(edit: Mapping[str, Any]) -> Callable[[Asked], Asked]:
    """A function that sets keys of a JSON body; ``a.b`` is a key within a key."""

    def change(asked: Asked) -> Asked:
        try:
            body = json.loads(asked.body)
        except ValueError:
            return asked
        if not isinstance(body, dict):
            return asked
        for path, value in edit.items():
            *outer, last = path.split(".")
            inner = body
            for key in outer:
                inner = inner.setdefault(key, {})
            inner[last] = value
        return asked._replace(body=json.dumps(body).encode())

    return change


class ProgramStart:
    """One start of a program."""

    def __init__(
        self, program: Program, shelf: RunShelf | StoredCalls, say: Callable[[str], object]
    ) -> None:
        program = program.of_run(shelf.values)
        self._program, self._shelf, self._say = program, shelf, say
        self.stopped = False
        """True if it was asked to stop by a signal."""
        self.is_empty = False
        self._began = time.monotonic()
        asks = isinstance(shelf, RunShelf) and shelf.asks(program.rules.in_doubt)
        self.recording = Recording(
            shelf,
            program.rules,
            selection=program.selection,
            where=f"run {shelf.run_id}",
            intents=shelf if isinstance(shelf, RunShelf) and asks else None,
            check=shelf.check if isinstance(shelf, RunShelf) else None,
        )
        self.recording.on_live = self._tell
        self.recording.on_wait = say
        self._told = False

    @property
    def diverged(self) -> str:
        """The explanation, if the program was ended by a divergence."""
        return self.recording.diverged if self.recording.stops else ""

    def _tell(self) -> None:
        """Say once what was answered from the journal."""
        recording = self.recording
        if self._told or not recording.recorded:
            return
        self._told = True
        told = recording.told()
        took = time.monotonic() - self._began
        saved = duration(told["seconds"])
        if told["dollars"]:
            saved = f"{shown(told['dollars'])}, {saved}"
        line = (
            f"{told['calls']} of {recording.recorded} recorded calls answered from the journal"
            f" in {took:.1f} s (saved {saved})"
        )
        if recording.live_from is not None:
            line += f"; live from call {recording.live_from}"
        self._say(line)

    def run(self) -> int:
        """Start the program and wait; its exit code, or minus a signal's number."""
        usual = len(tempfile.gettempdir()) <= _LONGEST_FOLDER
        with tempfile.TemporaryDirectory("", "surehold-", None if usual else "/tmp") as folder:
            place = Path(folder)
            (place / "hello").mkdir()
            hub = Hub(self.recording, place)
            proxy = Proxy(os.environ) if self._needs_proxy() else None
            try:
                if proxy is not None:
                    proxy.recording = self.recording
                code = self._wait(self._environment(hub, proxy, place))
            finally:
                if proxy is not None:
                    proxy.close()
                hub.close()
                self.recording.close()
            joined = any((place / "hello").iterdir()) or (proxy is not None and proxy.seen)
            self.is_empty = not joined
            self._tell()
            return code

    def _wait(self, environ: Mapping[str, str]) -> int:
        child: subprocess.Popen[bytes] | None = None

        def forward(number: int, _: Any) -> None:
            self.stopped = True
            if child is not None and not (number == signal.SIGINT and _has_terminal()):
                child.send_signal(number)

        before = {
            number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            child = subprocess.Popen(self._program.command, env=dict(environ))
            return child.wait()
        finally:
            if child is not None and child.poll() is None:
                child.terminate()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _needs_proxy(self) -> bool:
        if self._program.proxy == "auto":
            return not _is_python(self._program.command[0])
        return self._program.proxy == "on"

    def _environment(self, hub: Hub, proxy: Proxy | None, place: Path) -> dict[str, str]:
        program, values = self._program, self._shelf.values
        told = {
            "socket": hub.path,
            "record": program.selection.record,
            "pass": program.selection.passed,
            "models": program.selection.models,
            "freeze": {one: values["began" if one == "time" else "seed"] for one in program.freeze},
        }
        environ = dict(os.environ)
        if proxy is not None:
            environ |= proxy.variables()
            told["pass"] = [*program.selection.passed, f"{proxy.url}/*"]
        environ["SUREHOLD_EXEC"] = json.dumps(told)
        environ["SUREHOLD_HELLO"] = str(place / "hello")
        rest = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = str(INJECTED) + (os.pathsep + rest if rest else "")
        # Sets and dicts of strings have the same order in every start.
        environ.setdefault("PYTHONHASHSEED", str(values.get("seed", 0)))
        return environ


def _has_terminal() -> bool:
    """True if a terminal tells this process and its children of Ctrl-C."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def duration(seconds: float) -> str:
    """Format seconds for people.

    >>> duration(0.25), duration(41.7), duration(372), duration(7325)
    ('0.2 s', '42 s', '6 min 12 s', '2 h 2 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _is_python(command: str) -> bool:
    """True if the command is Python, or a script that Python executes."""
    name = Path(command).name
    if name.startswith(_PYTHONS):
        return True
    found = shutil.which(command)
    if found is None:
        return False
    if os.path.realpath(found) == os.path.realpath(sys.executable):
        return True
    with open(found, "rb") as file:
        return b"python" in file.readline(200) and file.tell() > 0
