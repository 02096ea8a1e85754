"""Runs begun here and executed elsewhere: submissions, and handles to them.

Holds what is written when a run is queued. Executing queued runs belongs to `surehold.executors`.
"""

from __future__ import annotations

from surehold.doors.submit.handle import AsyncRunHandle as AsyncRunHandle
from surehold.doors.submit.handle import Look as Look
from surehold.doors.submit.handle import RunHandle as RunHandle
from surehold.doors.submit.handle import cancel_run as cancel_run
from surehold.doors.submit.submission import QueueOptions as QueueOptions
from surehold.doors.submit.submission import StartOptions as StartOptions
from surehold.doors.submit.submission import begin_queued as begin_queued
