"""DBOS on SQLite, as it comes: a workflow is a run, what its steps return are its states."""

from __future__ import annotations

import time
from typing import Any

from dbos import DBOS, DBOSClient, SetWorkflowID

from proof.peers.states import MOMENT, Tell, state

_RUN = "run"
_PATIENCE = 30


def _address(directory: str) -> str:
    return f"sqlite:///{directory}/runs.sqlite"


def _configure(directory: str) -> None:
    DBOS(
        config={
            "name": "proof",
            "system_database_url": _address(directory),
            "run_admin_server": False,
            "log_level": "CRITICAL",
        }
    )


def save_for_ever(tell: Tell, directory: str) -> None:
    _configure(directory)

    @DBOS.step()
    def save(number: int) -> dict[str, Any]:
        return state(number)

    @DBOS.workflow()
    def flow() -> None:
        number = 0
        while True:
            number += 1
            save(number)
            tell("saved", number)

    DBOS.launch()
    if DBOS.get_workflow_status(_RUN) is not None:
        # Launching has begun to recover it.
        time.sleep(3600)
    with SetWorkflowID(_RUN):
        flow()


def look(tell: Tell, directory: str) -> None:
    client = DBOSClient(system_database_url=_address(directory))
    found = [step["output"] for step in client.list_workflow_steps(_RUN)]
    latest = found[-1] if found else {}
    tell("latest", latest.get("number"), latest.get("text"))
    for one in found:
        tell("found", one["number"], one["text"])


def _define(tell: Tell, seconds: float) -> Any:
    @DBOS.step()
    def first() -> bool:
        return True

    @DBOS.step()
    def second() -> None:
        tell("acted")
        time.sleep(seconds)

    @DBOS.workflow()
    def flow() -> None:
        first()
        second()

    return flow


def begin(tell: Tell, directory: str) -> None:
    _configure(directory)
    flow = _define(tell, 3600)
    DBOS.launch()
    with SetWorkflowID(_RUN):
        flow()


def resume(tell: Tell, directory: str) -> None:
    """Launching recovers what was pending."""
    _configure(directory)
    _define(tell, MOMENT)
    DBOS.launch()
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        status = DBOS.get_workflow_status(_RUN)
        if status is not None and status.status == "SUCCESS":
            tell("ended")
            return
        time.sleep(0.02)
