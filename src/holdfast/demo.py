"""`make demo`: a real job is killed half way, started again, and the journal is read.

It runs the job in a child process, sends it SIGKILL in the middle, starts the same command again,
and then shows from the journal which step ran in which attempt.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import holdfast
from holdfast.checkpoint.views import Change, HistoryEntry

__all__ = ["job", "main"]

PAGES = [f"page-{number:02}.html" for number in range(1, 21)]
KILL_AFTER = 9


def job(address: str, calls: Path) -> None:
    """Reads twenty pages, one a step; every reading is noted in *calls*, as an invoice would be."""
    with holdfast.run("crawl", storage=address) as run:
        print(f"  process started, {len(run.state.get('read', []))} pages read so far", flush=True)
        for page in PAGES[len(run.state.get("read", [])) :]:
            time.sleep(0.05)
            with calls.open("a") as invoice:
                invoice.write(f"{page}\n")
            words = sum(map(ord, page)) * 7 % 900
            run.checkpoint(
                node="read",
                read=[*run.state.get("read", []), page],
                words=run.state.get("words", 0) + words,
                metadata={"attempt": run.attempt},
            )
            print(f"  read {page}", flush=True)


def main() -> int:
    """Kill the job, start it again, and show what the journal says."""
    console = Console()
    with tempfile.TemporaryDirectory() as directory:
        address = f"sqlite:///{directory}/demo.db"
        calls = Path(directory) / "calls"
        command = [sys.executable, "-m", "holdfast.demo", address, str(calls)]
        console.rule("first start")
        acknowledged = _start(command, kill_after=KILL_AFTER)
        console.print(f"[red]SIGKILL[/red] after step {acknowledged} of {len(PAGES)}")
        console.rule("second start, the same command")
        _start(command)
        console.rule("what the journal says")
        return _report(console, address, calls.read_text().split())


def _start(command: list[str], kill_after: int | None = None) -> int:
    steps = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="")
            steps += "read page" in line
            if steps == kill_after:
                child.send_signal(signal.SIGKILL)
    return steps


def _report(console: Console, address: str, calls: list[str]) -> int:
    with holdfast.CheckpointManager(address) as manager:
        entries = manager.history("crawl")
        verdict = manager.verify("crawl")[0]
    table = Table("step", "attempt", "what changed", "time")
    for entry in entries:
        table.add_row(*_row(entry))
    console.print(table)
    resumed = next(entry for entry in entries if entry.checkpoint.metadata.get("attempt") == 2)
    steps = [entry.checkpoint.step for entry in entries if entry.checkpoint.kind == "routine"]
    twice = len(calls) - len(set(calls))
    console.print(
        f"{len(steps)} steps, each saved once: {steps == list(range(1, len(PAGES) + 1))}. "
        f"Resumed at step {resumed.checkpoint.step}. "
        f"Pages read: {len(set(calls))}, of which twice: {twice}. "
        f"Journal of {verdict.records} records verified: {bool(verdict)}."
    )
    if twice:
        console.print("A page is read twice if the kill falls between its reading and its save.")
    return 0 if bool(verdict) and steps == list(range(1, len(PAGES) + 1)) and twice <= 1 else 1


def _row(entry: HistoryEntry) -> tuple[str, str, str, str]:
    point = entry.checkpoint
    attempt = str(point.metadata.get("attempt", ""))
    changed = ", ".join(_words(change) for change in entry.changes) or point.status
    return str(point.step), attempt, changed, f"{point.timestamp:%H:%M:%S.%f}"[:-3]


def _words(change: Change) -> str:
    """A change in the few words that fit a table: ``read + page-02.html``, ``words = 139``."""
    key = change.path.strip("/")
    if key.endswith("/-"):
        return f"{key.removesuffix('/-')} + {change.value}"
    value = change.value
    return f"{key} = {value[0] if isinstance(value, list) and len(value) == 1 else value}"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        job(sys.argv[1], Path(sys.argv[2]))
    else:
        sys.exit(main())
