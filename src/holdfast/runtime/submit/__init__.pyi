from holdfast.runtime.submit.handle import AsyncRunHandle as AsyncRunHandle
from holdfast.runtime.submit.handle import RunHandle as RunHandle
from holdfast.runtime.submit.submission import QueueOptions as QueueOptions
from holdfast.runtime.submit.submission import StartOptions as StartOptions
from holdfast.runtime.submit.submission import begin_queued as begin_queued
