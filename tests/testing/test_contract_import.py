"""The contract of storages can be imported in any order."""

from __future__ import annotations

import pytest

import surehold.testing.contract.racing
from surehold import testing


def test_the_contract_is_offered_after_one_of_its_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(vars(testing), "StorageContract", raising=False)
    assert testing.StorageContract is surehold.testing.contract.StorageContract
