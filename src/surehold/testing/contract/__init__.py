"""The contract of a storage as a test class: one test per promise.

Needs pytest; `surehold.testing` says so where it is missing.
"""

from __future__ import annotations

from surehold.testing.contract.suite import StorageContract as StorageContract
