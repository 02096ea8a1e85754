"""A number of runs on PostgreSQL, the log of their executions, and faults they live through."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.e2e.engines import processes
from tests.e2e.engines.judging import Log, Verdict
from tests.executors.counting import STEPS, count
from tests.servers import postgres

from surehold import RunQuery, Storage, open_storage
from surehold.errors import StorageError


class Trial:
    """Runs of the counting workflow in a schema of their own."""

    def __init__(self, directory: Path, runs: int, pause: float = 0.05) -> None:
        self.address = f"{postgres().url}&schema=t{uuid.uuid4().hex[:12]}"
        self.log = Log(directory / "executions")
        self._queued = 0
        self._batch: list[str] = []
        self.seeds = {f"run-{number:04}": number for number in range(runs)}
        # Processes that are started from now on inherit these.
        os.environ["SUREHOLD_TEST_LOG"] = str(self.log.path)
        os.environ["SUREHOLD_TEST_PAUSE"] = str(pause)

    def start(self, share: float = 1.0) -> list[str]:
        """Queue a share of all runs, after those that were queued before; their ids."""
        count_now = round(share * len(self.seeds))
        self._batch = list(self.seeds)[self._queued : self._queued + count_now]
        self._queued += len(self._batch)
        with open_storage(self.address) as storage:
            for run_id in self._batch:
                count.start(self.seeds[run_id], run_id=run_id, storage=storage)
        return self._batch

    def reach(self, share: float, seconds: float = 300) -> None:
        """Wait until that share of the steps of the runs queued last has been executed."""
        wanted = share * len(self._batch) * STEPS
        processes.until(lambda: self._ended() >= wanted, f"{share:.0%} of the steps", seconds)

    def _ended(self) -> int:
        runs = set(self._batch)
        ended = (one for one in self.log.lines() if one.event == "end" and one.run_id in runs)
        return len({(one.run_id, one.number) for one in ended})

    def busiest(self) -> int:
        """The process that has begun the most runs and not ended them."""
        at_work = Counter(line.pid for line in self.log.at_work().values())
        return next(pid for pid, _ in at_work.most_common() if pid in self.workers())

    def kill(self, pids: Iterable[int]) -> None:
        """Kill processes at once; what they had in flight is counted first."""
        victims = list(pids)
        processes.stop(victims)
        self.log.note_fault(victims)
        processes.kill(victims)

    def freeze(self, pid: int) -> list[str]:
        """Freeze a process; the runs whose steps it has in flight."""
        processes.stop([pid])
        self.log.note_fault([pid])
        return [run_id for run_id, line in self.log.at_work().items() if line.pid == pid]

    def taken_over(self, run_ids: Iterable[str], pid: int) -> bool:
        """True once another process has executed a step of each run."""
        at_work = self.log.at_work()
        return all(run_id not in at_work or at_work[run_id].pid != pid for run_id in run_ids)

    def restart_postgres(self, pids: Iterable[int]) -> None:
        """Kill PostgreSQL and start it again; *pids* may have steps in flight."""
        workers = list(pids)
        processes.stop(workers)
        self.log.note_fault(workers)
        postgres().kill()
        processes.wake(workers)

    def workers(self) -> set[int]:
        """The processes that have executed steps and still live."""
        known = {line.pid for line in self.log.lines()}
        return {pid for pid in known if processes.is_live(pid)}

    def finish(self, seconds: float = 900) -> Verdict:
        """Wait until all runs are completed, and judge them."""
        with open_storage(self.address) as storage:
            processes.until(lambda: self._completed(storage), "the end of all runs", seconds)
            return self.log.judge(storage, self.seeds)

    def _completed(self, storage: Storage) -> bool:
        try:
            left = [*storage.runs(RunQuery(not_status="completed", limit=1))]
        except StorageError:
            return False
        return not left
