"""One storage over several: a primary, copies, retries and circuit breakers."""

from __future__ import annotations

from surehold.storage.replicated.breaker import BreakerRules as BreakerRules
from surehold.storage.replicated.replicas import StorageEvent as StorageEvent
from surehold.storage.replicated.retries import TRANSIENT as TRANSIENT
from surehold.storage.replicated.retries import CallProgress as CallProgress
from surehold.storage.replicated.retries import Retry as Retry
from surehold.storage.replicated.retries import is_transient as is_transient
from surehold.storage.replicated.retries import retried as retried
from surehold.storage.replicated.retries import within as within
from surehold.storage.replicated.storage import ResilientStorage as ResilientStorage
