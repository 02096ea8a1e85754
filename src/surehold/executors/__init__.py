"""Executors: where and when runs execute; the storage alone holds the truth.

Holds `drive`, the protocol, and the executors. What a run does belongs to the
doors and agents.
"""

from __future__ import annotations

from surehold.executors.driving import Driven as Driven
from surehold.executors.driving import Executor as Executor
from surehold.executors.driving import drive as drive
from surehold.executors.local import LocalExecutor as LocalExecutor
from surehold.executors.moving import Move as Move
from surehold.executors.moving import move_runs as move_runs
from surehold.executors.queue_control import cancel as cancel
from surehold.executors.queue_control import handle as handle
from surehold.executors.queue_control import list_workers as list_workers
from surehold.executors.queue_control import queue_entries as queue_entries
from surehold.executors.queue_control import queues as queues
from surehold.executors.queue_control import rebuild_queues as rebuild_queues
from surehold.executors.queue_control import requeue as requeue
from surehold.executors.queue_control import set_queue as set_queue
from surehold.executors.queue_control import unserved as unserved
from surehold.executors.ray import RayExecutor as RayExecutor
from surehold.executors.ray import RayWorkerInfo as RayWorkerInfo
from surehold.executors.schedules import Schedule as Schedule
from surehold.executors.schedules import schedule as schedule
from surehold.executors.serving import Served as Served
from surehold.executors.serving import schedules_in as schedules_in
from surehold.executors.serving import served_by as served_by
from surehold.executors.starting import Startable as Startable
from surehold.executors.starting import startables as startables
from surehold.executors.temporal import TemporalExecutor as TemporalExecutor
from surehold.executors.temporal import TemporalWorker as TemporalWorker
from surehold.executors.worker import Worker as Worker
from surehold.executors.worker import executed_here as executed_here
from surehold.executors.worker_metrics import serve_metrics as serve_metrics
