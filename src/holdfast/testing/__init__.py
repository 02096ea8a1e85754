"""For tests: the contract that every storage must keep, and records to keep it with.

This package needs pytest; nothing else of Holdfast does.
"""

from __future__ import annotations

import pytest

# Before the modules are imported, so that a failing promise shows the values it compared.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "appending",
            "deleting",
            "leasing",
            "listing",
            "medium",
            "running",
            "sharing",
        )
    )
)

from holdfast.testing.contract import StorageContract  # noqa: E402
from holdfast.testing.journal import (  # noqa: E402
    FakeClock,
    HeaderFields,
    JournalWriter,
    make_records,
)

__all__ = ["FakeClock", "HeaderFields", "JournalWriter", "StorageContract", "make_records"]
