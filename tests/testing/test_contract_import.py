"""The contract of storages can be imported in any order."""

from __future__ import annotations

import pytest

import holdfast.testing.contract.racing
from holdfast import testing


def test_the_contract_is_offered_after_one_of_its_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(vars(testing), "StorageContract", raising=False)
    assert testing.StorageContract is holdfast.testing.contract.StorageContract
