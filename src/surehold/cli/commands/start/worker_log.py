"""The log of a worker: a line of JSON for each event, and for what libraries log."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import IO, Any, Literal

from surehold.cli import framework as ui
from surehold.executors import executed_here

Level = Literal["debug", "info", "warning", "error"]

_LEVELS: dict[str, Level] = {
    **dict.fromkeys(("run.dead", "run.unfit", "storage.error", "schedule.error"), "error"),
    **dict.fromkeys(("run.failed", "run.lost", "run.kept", "run.not_buried"), "warning"),
    **dict.fromkeys(("lease.lost", "leases.not_renewed", "run.taken_back"), "warning"),
    **dict.fromkeys(("worker.rests", "worker.not_announced"), "warning"),
}
"""The levels of events that are not plain information."""


class WorkerEvent(ui.Document, kw_only=True, tag="worker"):
    """``worker``: one line for each event, always as JSON"""

    at: datetime
    level: Level
    worker: str
    """The worker's id; empty before it has one."""
    event: str
    """Its name: worker.start, run.start, run.completed, run.failed, lease.lost and others; log for
    a line that a library or your code logs."""
    facts: dict[str, Any]


class WorkerLog(logging.Handler):
    """Writes events, and all that is logged in this process, as lines of JSON."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self.worker = ""
        """The id of the worker, once there is one."""
        self._out = out
        self._writing = threading.Lock()

    def tell(self, event: str, facts: dict[str, Any], level: Level | None = None) -> None:
        """Write an event."""
        told = WorkerEvent(
            at=datetime.now(UTC),
            level=level or _LEVELS.get(event, "info"),
            worker=self.worker,
            event=event,
            facts=facts,
        )
        line = ui.safe_json(told)
        with self._writing:
            self._out.write(line + "\n")
            self._out.flush()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            facts: dict[str, Any] = {"logger": record.name, "message": record.getMessage()}
            if record.exc_info:
                facts["traceback"] = logging.Formatter().formatException(record.exc_info)
            self.tell("log", facts | executed_here(), _level_of(record.levelno))
        except Exception:
            self.handleError(record)

    def hear_libraries(self) -> None:
        """Take over what this process logs and warns of, from warnings on."""
        logging.getLogger().addHandler(self)
        logging.captureWarnings(True)

    def close(self) -> None:
        """Leave logging as it was."""
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(self)
        super().close()


def _level_of(number: int) -> Level:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"
