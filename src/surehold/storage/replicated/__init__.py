"""One storage over several: a primary, copies, retries and circuit breakers."""

from __future__ import annotations

from surehold.storage.replicated.breaker import BreakerRules as BreakerRules
from surehold.storage.replicated.replicas import StorageEvent as StorageEvent
from surehold.storage.replicated.storage import ResilientStorage as ResilientStorage
