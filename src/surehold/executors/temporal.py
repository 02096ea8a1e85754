"""The executor over a Temporal server: a workflow a run, with one activity.

Temporal decides which process drives a run, and notices by heartbeats when that process is gone.
Its histories hold run ids and outcomes; what a run did is in the storage. A run that waits ends
its workflow, and holds nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from surehold.core.closing import Closing
from surehold.engine.leases import LEASE_SECONDS
from surehold.errors import UsageError
from surehold.executors.worker import Worker
from surehold.executors.worker_metrics import WorkerMetrics
from surehold.lazy import extra
from surehold.storage.base import Storage
from surehold.storage.registry import open_storage

if TYPE_CHECKING:
    from temporalio.service import TLSConfig

logger = logging.getLogger("surehold.executors")

T = TypeVar("T")

_WORKFLOW, _ACTIVITY = "surehold-run", "surehold-drive"
_LONGEST_DRIVE = timedelta(days=3650)
_LOOK = 1.0
"""Seconds between two looks for ready runs, on average."""
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=1), timedelta(seconds=30)


class RunWorkflow:
    """The workflow of one drive of one run; it ends when the run ends or waits."""

    async def run(self, run_id: str, heartbeat_seconds: float) -> str:
        """Have the run driven, by another process if the first one is lost."""
        from temporalio import workflow
        from temporalio.common import RetryPolicy

        outcome: str = await workflow.execute_activity(
            _ACTIVITY,
            run_id,
            result_type=str,
            start_to_close_timeout=_LONGEST_DRIVE,
            heartbeat_timeout=timedelta(seconds=heartbeat_seconds),
            retry_policy=RetryPolicy(
                initial_interval=_FIRST_PAUSE, maximum_interval=_LONGEST_PAUSE
            ),
        )
        return outcome


@cache
def _workflow() -> type[RunWorkflow]:
    """The workflow, made known to Temporal's library when it is first needed."""
    from temporalio import workflow

    workflow.run(RunWorkflow.run)
    return workflow.defn(name=_WORKFLOW, sandboxed=False)(RunWorkflow)  # type: ignore[no-any-return]


class _Loop:
    """An event loop on its own thread: a blocking interface to Temporal's client."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="surehold-temporal", daemon=True
        )
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """The result of *work*; a `TimeoutError` if it takes longer."""
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), self._loop)
        return future.result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(eq=False, repr=False)
class _Starter:
    """Starts the workflow of a run on a server."""

    address: str
    namespace: str
    task_queue: str
    heartbeat_seconds: float
    api_key: str | None
    tls: TLSConfig | bool | None
    _client: Any = None

    def __post_init__(self) -> None:
        with extra("temporal", "the executor over Temporal needs the package temporalio"):
            import temporalio.client  # noqa: F401
        if self.heartbeat_seconds <= 0:
            raise UsageError(
                f"heartbeat_seconds is {self.heartbeat_seconds}", hint="give a number above 0"
            )

    async def client(self, *, lazy: bool = True) -> Any:
        """The client; if *lazy*, connected by its first request."""
        from temporalio.client import Client

        if self._client is None:
            facts = {"namespace": self.namespace, "api_key": self.api_key, "tls": self.tls}
            self._client = await Client.connect(self.address, lazy=lazy, **facts)
        return self._client

    async def start(self, run_id: str, timeout: float) -> None:
        """Start the workflow of a run, unless it is there."""
        from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

        await (await self.client()).start_workflow(
            _WORKFLOW,
            args=[run_id, self.heartbeat_seconds],
            id=_workflow_id(run_id),
            task_queue=self.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            rpc_timeout=timedelta(seconds=timeout),
        )

    async def cancel(self, run_id: str, timeout: float) -> None:
        """Cancel the workflow of a run, and with it the activity."""
        handle = (await self.client()).get_workflow_handle(_workflow_id(run_id))
        await handle.cancel(rpc_timeout=timedelta(seconds=timeout))


def _workflow_id(run_id: str) -> str:
    return f"surehold/{run_id}"


class TemporalExecutor(Closing):
    """Hands runs to the processes that serve a task queue with `TemporalWorker`.

    A submission that does not reach the server within *timeout* seconds is logged and dropped: a
    worker finds the run in the storage. *api_key* and *tls* are those of Temporal's client.
    """

    def __init__(
        self,
        address: str = "localhost:7233",
        *,
        namespace: str = "default",
        task_queue: str = "surehold",
        heartbeat_seconds: float = LEASE_SECONDS,
        timeout: float = 10.0,
        api_key: str | None = None,
        tls: TLSConfig | bool | None = None,
    ) -> None:
        self._starter = _Starter(
            address, namespace, task_queue, heartbeat_seconds, api_key=api_key, tls=tls
        )
        self._timeout = timeout
        self._loop = _Loop()

    def submit(self, run_id: str) -> None:
        """See `Executor.submit`."""
        self._hint(self._starter.start(run_id, self._timeout), run_id)

    def cancel(self, run_id: str) -> None:
        """See `Executor.cancel`."""
        self._hint(self._starter.cancel(run_id, self._timeout), run_id)

    def close(self, timeout: float | None = None) -> None:
        """Let go of the server. The processes that drive runs continue."""
        self._loop.close()

    def _hint(self, work: Coroutine[Any, Any, None], run_id: str) -> None:
        from temporalio.service import RPCError

        try:
            self._loop.call(work, self._timeout)
        except (RPCError, RuntimeError, TimeoutError) as error:
            logger.warning("run %s: Temporal was not reached: %s", run_id, error)


class TemporalWorker:
    """Serves a task queue: executes each run that Temporal hands to this process.

    Any number of processes may do so. Each of them also looks in the storage for runs that are
    ready, due, answered or left by a dead process, and starts their workflows, so that a run needs
    no submission. *serves* are modules or ``module:name``. A lease and a heartbeat last
    *lease_seconds*. *api_key* and *tls* are those of Temporal's client.
    """

    def __init__(
        self,
        storage: Storage | str,
        *serves: str,
        address: str = "localhost:7233",
        namespace: str = "default",
        task_queue: str = "surehold",
        queues: Sequence[str] = ("default",),
        concurrency: int = 8,
        lease_seconds: float = LEASE_SECONDS,
        api_key: str | None = None,
        tls: TLSConfig | bool | None = None,
    ) -> None:
        self._starter = _Starter(
            address, namespace, task_queue, lease_seconds, api_key=api_key, tls=tls
        )
        self._opened = None if isinstance(storage, Storage) else open_storage(storage)
        self._worker = Worker.of_modules(
            self._opened or storage,  # type: ignore[arg-type]
            serves,
            queues,
            concurrency,
            lease_seconds,
            claims=False,
        )
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._stopping = threading.Event()

    @property
    def metrics(self) -> WorkerMetrics:
        """Counts of what this process did."""
        return self._worker.metrics

    def run(self) -> None:
        """Serve until `stop` is called; returns when every run has been let go."""
        sweeping = threading.Thread(target=self._look_after, name="surehold-worker", daemon=True)
        sweeping.start()
        try:
            asyncio.run(self._serve())
        finally:
            self.stop()
            sweeping.join()
            if self._opened is not None:
                self._opened.close()

    def stop(self) -> None:
        """Stop every run at its next step, and end; from any thread or signal."""
        self._stopping.set()
        self._worker.stop()

    def _look_after(self) -> None:
        try:
            self._worker.run()
        finally:
            self._stopping.set()

    async def _serve(self) -> None:
        from temporalio.worker import Worker as ActivityWorker

        client = await self._connect()
        if client is None:
            return
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="surehold-run") as pool:
            activities = ActivityWorker(
                client,
                task_queue=self._starter.task_queue,
                workflows=[_workflow()],
                activities=[self._activity()],
                activity_executor=pool,
                max_concurrent_activities=self._concurrency,
                graceful_shutdown_timeout=timedelta(seconds=self._lease_seconds),
            )
            async with activities:
                starting = asyncio.create_task(self._start_ready())
                await asyncio.to_thread(self._stopping.wait)
                starting.cancel()

    async def _connect(self) -> Any:
        """Connect, however long the server takes to answer; None if `stop` was called."""
        while not self._stopping.is_set():
            try:
                return await self._starter.client(lazy=False)
            except RuntimeError as error:
                logger.warning("Temporal was not reached: %s", error)
                await asyncio.sleep(_LOOK)
        return None

    async def _start_ready(self) -> None:
        while True:
            try:
                for run_id in await asyncio.to_thread(self._worker.ready, 2 * self._concurrency):
                    await self._starter.start(run_id, self._lease_seconds)
            except Exception as error:  # of the storage or the server; both come back
                logger.warning("ready runs were not started: %s", error)
            await asyncio.sleep(_LOOK * random.uniform(0.5, 1.5))

    def _activity(self) -> Callable[..., Any]:
        from temporalio import activity

        def execute(run_id: str) -> str:
            return self._execute(run_id)

        # The run is stopped between two steps, and not by an exception in the middle of one.
        decorate = activity.defn(name=_ACTIVITY, no_thread_cancel_exception=True)
        made: Callable[..., Any] = decorate(execute)
        return made

    def _execute(self, run_id: str) -> str:
        done = threading.Event()
        here = contextvars.copy_context()
        beating = threading.Thread(
            target=here.run, args=(self._beat, run_id, done), name="surehold-beat", daemon=True
        )
        beating.start()
        try:
            return self._worker.take(run_id)
        finally:
            done.set()
            beating.join()

    def _beat(self, run_id: str, done: threading.Event) -> None:
        """Tell the server that the run is executed, and hear from it whether to stop.

        A server that lost touch may have given the run to another process. That one gets no lease
        while this one holds it, so only a request to cancel counts.
        """
        from temporalio import activity

        while not done.is_set():
            activity.heartbeat()
            details = activity.cancellation_details()
            if details is not None and details.cancel_requested:
                self._worker.cancel(run_id)
            done.wait(self._lease_seconds / 4)
