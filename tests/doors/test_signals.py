"""One stop policy at every door: real signals, real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.processes import child_environment

from surehold import CheckpointManager, pending

DOORS = ["loop", "async_loop", "function", "async_function", "graph", "agent", "fleet"]
BY_CALLS = DOORS[:4]
ENDS = {signal.SIGINT: -signal.SIGINT, signal.SIGTERM: 128 + signal.SIGTERM}
SLOW = "60"
SAID = "a second signal breaks it off"


class Program:
    """A run in a process of its own."""

    def __init__(self, door: str, storage: str, part: str, seconds: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.doors.signalled", door, storage, part, seconds, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        self.errors = ""

    def until(self, word: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(self._process.communicate()[1])

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def heard(self) -> None:
        """Wait until it says that it heard a first signal."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.errors += line
            if SAID in line:
                return
        raise AssertionError(self.errors)

    def end(self) -> tuple[int, list[str]]:
        out, err = self._process.communicate(timeout=100)
        self.errors += err
        return self._process.returncode, out.split()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts a door's program on a storage of its own."""
    programs: list[Program] = []

    def begin(door: str, part: str, seconds: str, *options: str) -> Program:
        programs.append(Program(door, address(tmp_path), part, seconds, *options))
        return programs[-1]

    yield begin
    for program in programs:
        program.kill()


def address(path: Path) -> str:
    return f"sqlite:///{path}/runs.db"


def status(path: Path) -> str:
    with CheckpointManager(address(path)) as saved:
        run = saved.reader.run("r")
        assert run is not None
        newest = saved.reader.newest(run)
        assert newest is not None
        return newest.status


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("door", DOORS)
def test_the_first_signal_lets_the_unit_finish(
    start: Callable[..., Program], tmp_path: Path, door: str, number: int
) -> None:
    program = start(door, "inside", "1")
    program.until("begun")
    program.send(number)
    assert program.end() == (ENDS[signal.Signals(number)], ["finished"]), program.errors
    assert SAID in program.errors
    assert (status(tmp_path), pending("r", storage=address(tmp_path))) == ("interrupted", [])
    again = start(door, "inside", "0")
    assert again.end() == (0, ["last", "done"]), again.errors
    assert status(tmp_path) == "completed"


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("door", BY_CALLS)
def test_outside_of_a_unit_the_first_signal_raises_at_once(
    start: Callable[..., Program], tmp_path: Path, door: str, number: int
) -> None:
    program = start(door, "outside", SLOW)
    program.until("begun")
    program.send(number)
    assert program.end() == (ENDS[signal.Signals(number)], []), program.errors
    assert (status(tmp_path), pending("r", storage=address(tmp_path))) == ("interrupted", [])
    again = start(door, "outside", "0")
    assert again.end() == (0, ["begun", "finished", "last", "done"]), again.errors


@pytest.mark.parametrize("door", DOORS)
def test_the_second_signal_breaks_the_unit_off(
    start: Callable[..., Program], tmp_path: Path, door: str
) -> None:
    program = start(door, "inside", SLOW)
    program.until("begun")
    program.send(signal.SIGINT)
    program.heard()
    program.send(signal.SIGTERM)
    code, lines = program.end()
    assert (code in (*ENDS.values(), 1), lines) == (True, []), program.errors
    assert status(tmp_path) == "interrupted"
    doubt = [one.name for one in pending("r", storage=address(tmp_path))]
    assert len(doubt) == (1 if door in (*BY_CALLS, "agent") else 0)


def test_plain_code_on_the_thread_of_the_loop_is_broken_off_too(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    program = start("plain_graph", "inside", SLOW)
    program.until("begun")
    program.send(signal.SIGINT)
    program.heard()
    program.send(signal.SIGTERM)
    assert program.end() == (143, []), program.errors
    assert status(tmp_path) == "interrupted"
    again = start("plain_graph", "inside", "0")
    assert again.end() == (0, ["begun", "finished", "last", "done"]), again.errors


def test_a_second_signal_is_heard_while_the_first_is_being_handled(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    program = start("plain_graph", "inside", SLOW, "twice")
    program.until("begun")
    program.send(signal.SIGINT)
    assert program.end() == (143, []), program.errors
    assert status(tmp_path) == "interrupted"


def test_the_first_signal_is_raised_in_plain_code_of_an_async_workflow(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    program = start("blocked", "outside", SLOW)
    program.until("begun")
    program.send(signal.SIGINT)
    assert program.end() == (-signal.SIGINT, []), program.errors
    assert (status(tmp_path), pending("r", storage=address(tmp_path))) == ("interrupted", [])


@pytest.mark.parametrize("door", ["gather", "task_group"])
def test_calls_of_other_tasks_are_finished_too(
    start: Callable[..., Program], tmp_path: Path, door: str
) -> None:
    program = start(door, "inside", "1")
    program.until("begun")
    program.send(signal.SIGINT)
    assert program.end() == (-signal.SIGINT, ["finished"]), program.errors
    assert (status(tmp_path), pending("r", storage=address(tmp_path))) == ("interrupted", [])
    again = start(door, "inside", "0")
    assert again.end() == (0, ["last", "done"]), again.errors


def test_the_second_signal_breaks_off_what_a_left_sibling_waits_for(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    program = start("sibling_left", "inside", SLOW)
    program.until("begun")
    program.send(signal.SIGINT)
    program.heard()
    time.sleep(0.5)  # the sibling comes to its next call, and is left there
    program.send(signal.SIGTERM)
    began = time.monotonic()
    code, lines = program.end()
    assert (code in (*ENDS.values(), 1), lines) == (True, []), program.errors
    assert time.monotonic() - began < float(SLOW) / 2
    assert status(tmp_path) == "interrupted"
    assert len(pending("r", storage=address(tmp_path))) == 1


def test_a_run_inside_a_call_that_must_not_be_repeated_is_not_stopped(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    program = start("nested", "inside", "1")
    program.until("begun")
    program.send(signal.SIGTERM)
    assert program.end() == (143, ["finished"]), program.errors
    assert (status(tmp_path), pending("r", storage=address(tmp_path))) == ("interrupted", [])


@pytest.mark.parametrize("door", BY_CALLS)
def test_a_run_may_leave_signals_to_the_program(
    start: Callable[..., Program], tmp_path: Path, door: str
) -> None:
    program = start(door, "inside", SLOW, "deaf")
    program.until("begun")
    program.send(signal.SIGINT)
    assert program.end() == (-signal.SIGINT, []), program.errors
    assert SAID not in program.errors


@pytest.mark.parametrize("door", DOORS)
def test_handlers_of_the_program_are_left_alone(
    start: Callable[..., Program], tmp_path: Path, door: str
) -> None:
    program = start(door, "inside", "1", "own")
    program.until("begun")
    program.send(signal.SIGINT)
    assert program.end() == (0, ["own", "finished", "last", "done"]), program.errors
