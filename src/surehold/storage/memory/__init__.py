"""Runs in this process's memory, for tests and short-lived work."""

from __future__ import annotations

from surehold.storage.memory.state_store import StateStore as StateStore
from surehold.storage.memory.state_store import StateStoreStorage as StateStoreStorage
from surehold.storage.memory.storage import MemoryStorage as MemoryStorage
