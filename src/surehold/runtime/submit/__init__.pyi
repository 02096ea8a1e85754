from surehold.runtime.submit.handle import AsyncRunHandle as AsyncRunHandle
from surehold.runtime.submit.handle import RunHandle as RunHandle
from surehold.runtime.submit.submission import QueueOptions as QueueOptions
from surehold.runtime.submit.submission import StartOptions as StartOptions
from surehold.runtime.submit.submission import begin_queued as begin_queued
