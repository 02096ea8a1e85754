"""The executor over a Ray cluster: a pool of actors, each of which is a worker.

Ray places the actors, restarts them and moves them off dead nodes. It keeps nothing of a run: an
address, names of entry points and run ids go to the actors, and only counts come back.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from surehold.core.closing import Closing
from surehold.engine.leases import LEASE_SECONDS
from surehold.errors import UsageError
from surehold.executors.serving import served_by
from surehold.executors.worker import Worker
from surehold.lazy import extra
from surehold.storage.registry import open_storage

logger = logging.getLogger("surehold.executors")


class RayWorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of the pool."""

    node: str
    """The id that Ray gave its node."""
    host: str
    pid: int
    active: int
    """Runs that it executes."""
    completed: int
    lost: int
    """Runs that were taken over while it was away, so that its commits were refused."""


_NAMESPACE = "surehold"
_CALLS_AT_ONCE = 4
_CALLS_ON_THEIR_WAY = 10_000
"""Calls that may wait for one actor. Further ones are dropped: workers look in the storage too."""


class RayExecutor(Closing):
    """Executes queued runs in a pool of Ray actors on all nodes of a cluster.

    Every actor claims runs by itself, and takes back those of processes that died, so that no
    submission is needed and none must arrive; `submit` makes a run start at once, and in the actor
    that earlier submissions of it went to. *storage* is an address that every node can reach, and
    *serves* are modules or ``module:name``, which every node can import. *num_cpus* and
    *resources* are what each actor asks Ray for.

    The pool ends with this object, or with its process. A *detached* one stays, under its name
    *pool*, until `drain`: later executors of that name find it with the settings that it has.
    """

    def __init__(
        self,
        storage: str,
        *serves: str,
        queues: Sequence[str] = ("default",),
        actors: int = 4,
        concurrency: int = 8,
        lease_seconds: float = LEASE_SECONDS,
        address: str | None = None,
        pool: str = "surehold",
        detached: bool = False,
        num_cpus: float = 1.0,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        given: object = storage
        if not isinstance(given, str):
            raise UsageError(
                f"storage is a {type(given).__name__}",
                hint="give its address: the actors open it on their nodes",
            )
        if actors < 2:
            raise UsageError(
                f"actors is {actors}", hint="give 2 or more: one takes back the runs of another"
            )
        ray = self._ray = _import_ray()
        # What cannot work is refused here, and not by actors that never start.
        with open_storage(storage) as opened:
            Worker(opened, served_by(serves), queues=queues, lease_seconds=lease_seconds)
        self._detached = detached
        self._connected = not ray.is_initialized()
        if self._connected:
            ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False)
        settings = (storage, tuple(serves), tuple(queues), concurrency, lease_seconds)
        self._actors = [
            ray.remote(RayWorker)
            .options(
                name=f"{pool}-{number}",
                namespace=_NAMESPACE,
                get_if_exists=True,
                lifetime="detached" if detached else None,
                max_restarts=-1,
                max_task_retries=0,
                max_pending_calls=_CALLS_ON_THEIR_WAY,
                max_concurrency=_CALLS_AT_ONCE,
                num_cpus=num_cpus,
                resources=dict(resources or {}),
                scheduling_strategy="SPREAD",
            )
            .remote(*settings)
            for number in range(actors)
        ]

    def submit(self, run_id: str) -> None:
        """See `Executor.submit`."""
        place = int.from_bytes(hashlib.blake2b(run_id.encode(), digest_size=8).digest())
        self._tell(self._actors[place % len(self._actors)], "offer", run_id)

    def cancel(self, run_id: str) -> None:
        """Stop the run at its next step, if an actor executes it; no worker continues it."""
        self._tell_all("cancel", run_id)

    def workers(self, timeout: float = 10.0) -> list[RayWorkerInfo]:
        """The workers that answer within *timeout* seconds."""
        asked = self._tell_all("info")
        answered, _ = self._ray.wait(asked, num_returns=len(asked), timeout=timeout)
        found = []
        for answer in answered:
            try:
                found.append(msgspec.convert(self._ray.get(answer, timeout=timeout), RayWorkerInfo))
            except self._ray.exceptions.RayError as error:
                logger.warning("a Ray actor does not answer: %s", error)
        return found

    def close(self, timeout: float | None = None) -> None:
        """See `Executor.close`; a detached pool is left as it is."""
        if not self._detached:
            self.drain(timeout)
        if self._connected:
            self._ray.shutdown()

    def drain(self, timeout: float | None = None) -> None:
        """Stop every run at its next step, and end the pool within *timeout* seconds.

        Without one it waits a minute. Runs that are still executed then are taken back by others
        when their leases have ended.
        """
        seconds = 60.0 if timeout is None else timeout
        asked = self._tell_all("drain", seconds)
        if asked:
            self._ray.wait(asked, num_returns=len(asked), timeout=seconds)
        for actor in self._actors:
            try:
                self._ray.kill(actor, no_restart=True)
            except (self._ray.exceptions.RayError, RuntimeError, ValueError) as error:
                logger.warning("a Ray actor was not ended: %s", error)

    def _tell_all(self, method: str, *values: Any) -> list[Any]:
        answers = [self._tell(actor, method, *values) for actor in self._actors]
        return [answer for answer in answers if answer is not None]

    def _tell(self, actor: Any, method: str, *values: Any) -> Any:
        """Call an actor without waiting; None if the call was dropped."""
        try:
            return getattr(actor, method).remote(*values)
        except self._ray.exceptions.RayError as error:
            logger.warning("a Ray actor was not reached: %s", error)
            return None


class RayWorker:
    """The actor: a worker in a process that Ray started."""

    def __init__(
        self,
        storage: str,
        serves: Sequence[str],
        queues: Sequence[str],
        concurrency: int,
        lease_seconds: float,
    ) -> None:
        self._worker = Worker.of_modules(
            open_storage(storage), serves, queues, concurrency, lease_seconds
        )
        self._thread = threading.Thread(target=self._run, name="surehold-worker", daemon=True)
        self._thread.start()

    def offer(self, run_id: str) -> None:
        """Claim this run before others."""
        self._worker.offer(run_id)

    def cancel(self, run_id: str) -> None:
        """Stop this run at its next step, if it is executed here."""
        self._worker.cancel(run_id)

    def info(self) -> dict[str, Any]:
        """The facts of `RayWorkerInfo`."""
        return {
            "node": _import_ray().get_runtime_context().get_node_id(),
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "active": self._worker.active,
            "completed": self._worker.metrics["completed"],
            "lost": self._worker.metrics["lost"],
        }

    def drain(self, timeout: float) -> None:
        """Claim nothing more, and return when every run has stopped."""
        self._worker.stop("the pool is drained")
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException:
            logger.exception("the worker ended; Ray starts this actor again")
            os._exit(1)


def _import_ray() -> Any:
    with extra("ray", "RayExecutor needs the package ray"):
        import ray
    return ray
