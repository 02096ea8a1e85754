"""An agent with a plain loop: routine checkpoints, a refresh after two hours, drift, recovery.

A working day of it runs in a moment, because time is handed in.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta

from surehold import ResilientCheckpointManager

ROUTINE = timedelta(minutes=30).total_seconds()
REFRESH = timedelta(hours=2).total_seconds()


class Day:
    """A clock that the example moves."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 5, 9, tzinfo=UTC)

    def work_for(self, minutes: float) -> None:
        self._now += timedelta(minutes=minutes)

    def date(self) -> datetime:
        return self._now

    def time(self) -> float:
        return self._now.timestamp()


class Agent:
    """Reads through reports. In the morning a report is broken, in the afternoon it gets stuck."""

    def __init__(self, manager: ResilientCheckpointManager, day: Day) -> None:
        self.manager = manager
        self.day = day
        manager.current_task.update(id="reports", progress_percentage=0, action="")
        manager.memory["facts"] = []

    def execute_current_task(self, cycle: int) -> None:
        self.day.work_for(minutes=5)
        if cycle == 10:
            raise OSError("report 10 cannot be read")
        task = self.manager.current_task
        if 61 <= cycle < 65:
            task["action"] = "search for the same again"
            self.manager.memory["facts"].append("nonsense")
            return
        task["action"] = f"read report {cycle}"
        task["progress_percentage"] = min(task["progress_percentage"] + 1, 99)
        self.manager.memory["facts"].append(f"fact {cycle}")


def work(manager: ResilientCheckpointManager, day: Day, cycles: int) -> list[str]:
    """Run the agent's loop; return the events other than work."""
    agent = Agent(manager, day)
    told: list[str] = []
    started = saved = day.time()
    for cycle in range(1, cycles + 1):
        try:
            agent.execute_current_task(cycle)
            now = day.time()
            if now - saved >= ROUTINE:
                manager.create_checkpoint("routine")
                saved = now
            if now - started >= REFRESH:
                manager.create_checkpoint("recovery")
                told.append(f"cycle {cycle}: two hours up, refreshed")
                started = now
            report = manager.check_drift()
            if report:
                told.append(f"cycle {cycle}: {report.findings[0].saw}; went back")
        except OSError as error:
            recovery = manager.create_checkpoint("recovery")
            told.append(f"cycle {cycle}: {error}; recovery point {recovery[:8]}")
    return told


def main() -> None:
    day = Day()
    with tempfile.TemporaryDirectory() as directory:
        with ResilientCheckpointManager(
            "agent-3",
            f"sqlite:///{directory}/agent.db",
            on_drift="restore",
            clock=day.date,
            monotonic=day.time,
        ) as manager:
            manager.create_checkpoint("routine")
            print(*work(manager, day, cycles=96), sep="\n")
            kinds = [entry.kind for entry in manager.list_checkpoints("agent-3")]
            counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
            print("kept:", counts)
            print("nonsense left:", manager.memory["facts"].count("nonsense"))
        with ResilientCheckpointManager("agent-3", f"sqlite:///{directory}/agent.db") as again:
            again.restore_checkpoint(again.get_latest_checkpoint() or "")
            print("started again with", len(again.memory["facts"]), "facts")


if __name__ == "__main__":
    main()
