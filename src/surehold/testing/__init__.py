"""For tests: the contract of storages, and records to check it with.

`StorageContract` needs pytest, and is loaded when it is first used; nothing else here does.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from surehold.lazy import extra
from surehold.testing.journal import FakeClock, HeaderFields, JournalWriter, make_records

if TYPE_CHECKING:
    from surehold.testing.contract import StorageContract

__all__ = ["FakeClock", "HeaderFields", "JournalWriter", "StorageContract", "make_records"]


def __getattr__(name: str) -> Any:
    if name != "StorageContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need = "the contract of storages is a pytest suite, and pytest is not installed"
    with extra("testing", need):
        import pytest
    module = f"{__name__}.contract"
    if module not in sys.modules:  # so that a failing promise shows the values it compared
        pytest.register_assert_rewrite(module)
    contract = import_module(module).StorageContract
    globals()[name] = contract
    return contract
