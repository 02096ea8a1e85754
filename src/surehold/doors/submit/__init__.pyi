from surehold.doors.submit.handle import AsyncRunHandle as AsyncRunHandle
from surehold.doors.submit.handle import RunHandle as RunHandle
from surehold.doors.submit.submission import QueueOptions as QueueOptions
from surehold.doors.submit.submission import StartOptions as StartOptions
from surehold.doors.submit.submission import begin_queued as begin_queued
