"""The programs of examples/patterns/, killed at their records, locally and in a worker.

Each is a port, written anew, of a sample of Temporal, DBOS or Restate.
"""

from __future__ import annotations

import re
import shlex
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.media import FULL, times
from tests.patterns.killing import Play, Where, check_every_kill, check_random_kills
from tests.servers import postgres

ROOT = Path(__file__).parents[2]
PORTS = sorted((ROOT / "examples" / "patterns").glob("*.py"))
PAGE = ROOT / "docs" / "patterns" / "ports.md"
THEIRS = {
    "activity": ("Temporal", "hello/hello_activity.py", 77),
    "agent_inbox": ("DBOS", "agent-inbox/main.py", 149),
    "async_activity": ("Temporal", "hello/hello_activity_async.py", 73),
    "cancellation": ("Temporal", "hello/hello_cancellation.py", 91),
    "child": ("Temporal", "hello/hello_child_workflow.py", 60),
    "choice": ("Temporal", "hello/hello_activity_choice.py", 118),
    "completion": ("Temporal", "hello/hello_async_activity_completion.py", 97),
    "continue_as_new": ("Temporal", "hello/hello_continue_as_new.py", 48),
    "cron": ("Temporal", "hello/hello_cron.py", 67),
    "exception": ("Temporal", "hello/hello_exception.py", 96),
    "heartbeat": ("Temporal", "hello/hello_activity_heartbeat.py", 70),
    "method": ("Temporal", "hello/hello_activity_method.py", 64),
    "multiprocess": ("Temporal", "hello/hello_activity_multiprocess.py", 84),
    "news_agent": ("DBOS", "hacker-news-agent/, workflows.py and agent.py", 511),
    "parallel": ("Temporal", "hello/hello_parallel_activity.py", 69),
    "parallelize": ("Restate", "parallelizework/", 117),
    "patch": ("Temporal", "hello/hello_patch.py", 149),
    "payment_webhook": ("Restate", "signalspayments/", 178),
    "polling": ("Temporal", "polling/infrequent/", 82),
    "query": ("Temporal", "hello/hello_query.py", 64),
    "racing_agents": ("Restate", "tour-of-agents/app/racing_agents.py", 68),
    "resource_pool": ("Temporal", "resource_pool/", 474),
    "retry": ("Temporal", "hello/hello_activity_retry.py", 74),
    "saga": ("Restate", "sagas/app.py", 90),
    "search_attributes": ("Temporal", "hello/hello_search_attributes.py", 54),
    "signals": ("Temporal", "hello/hello_signal.py", 77),
    "sleep_for_days": ("Temporal", "sleep_for_days/", 114),
    "updatable_timer": ("Temporal", "updatable_timer/", 178),
    "update": ("Temporal", "hello/hello_update.py", 57),
    "widget_store": ("DBOS", "widget-store/, main.py and schema.py", 323),
}
"""The system, the sample and its lines, all of them counted, of which each is a port."""
COMMAND = re.compile(r"^\$ (?:python|surehold) (.+)$", re.M)
AT_ONCE = {"parallel": 5, "parallelize": 3, "racing_agents": 2}
"""Calls that are in flight together."""
BY_CLOCK = ("cron",)
"""Programs that take seconds, and whose calls depend on the clock."""
KILLS = times(2, 10, "SUREHOLD_KILLS")
"""Kills at random of each program."""
PLACES = None if FULL else 3
"""The records of each program that it is killed at; None for all."""


def on_postgres(directory: Path) -> str:
    """A schema of its own for each directory."""
    return f"{postgres().url}&schema=p{zlib.crc32(str(directory).encode())}"


def port(path: Path, *, worker: bool = False, server: bool = False) -> Play:
    text = path.read_text("utf-8")
    return Play(
        {path.name: text},
        [shlex.split(line) for line in COMMAND.findall(text)],
        ("greet World",) if path.stem in BY_CLOCK else (),
        AT_ONCE.get(path.stem, 1),
        worker=worker,
        address=on_postgres if server else None,
    )


@pytest.fixture
def make_directory(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        made = tmp_path / name
        made.mkdir()
        return made

    return make


LOCAL = PORTS if FULL else [path for path in PORTS if path.stem not in BY_CLOCK]
SOME = PORTS if FULL else [path for path in PORTS if path.stem in ("signals", "saga", "child")]
"""The others are killed in a worker in the long form."""


def named(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("where", ["before", "after"] if FULL else ["before"])
@pytest.mark.parametrize("path", LOCAL, ids=named)
def test_a_port_killed_at_its_records_ends_alike(
    path: Path, where: Where, make_directory: Callable[[str], Path], finding: Callable[..., None]
) -> None:
    kills = check_every_kill(port(path), make_directory, where, PLACES)
    finding(f"examples/patterns/{path.name}", kills, f"killed {where} a record: ended alike")


@pytest.mark.parametrize("path", SOME, ids=named)
def test_a_port_killed_at_its_records_in_a_worker_ends_alike(
    path: Path, make_directory: Callable[[str], Path], finding: Callable[..., None]
) -> None:
    kills = check_every_kill(port(path, worker=True, server=FULL), make_directory, most=PLACES)
    finding(f"examples/patterns/{path.name}", kills, "killed in a worker: ended alike")


@pytest.mark.parametrize("where", ["here", "in a worker"] if FULL else ["here"])
@pytest.mark.parametrize("path", SOME, ids=named)
def test_a_port_killed_at_random_ends_alike(
    path: Path, where: str, make_directory: Callable[[str], Path], finding: Callable[..., None]
) -> None:
    worker = where == "in a worker"
    kills = check_random_kills(port(path, worker=worker, server=worker), make_directory, KILLS)
    finding(f"examples/patterns/{path.name}", kills, f"killed at random {where}: ended alike")


def test_the_page_has_the_lines_of_theirs_and_ours() -> None:
    assert {path.stem for path in PORTS} == THEIRS.keys()
    rows = ["| Sample | Of | Lines | Ours | Lines |", "|---|---|---|---|---|"]
    for path in PORTS:
        system, sample, lines = THEIRS[path.stem]
        ours = len(path.read_text("utf-8").splitlines())
        rows.append(f"| `{sample}` | {system} | {lines} | `{path.name}` | {ours} |")
    found = [line for line in PAGE.read_text("utf-8").splitlines() if line[:1] == "|"]
    table = "\n".join(rows)
    assert found[: len(rows)] == rows, f"the table of {PAGE.name} should be\n{table}"
