"""Of two holders of one run in one process, the stale one is refused on every medium."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.conftest import MEDIA
from tests.engine.runs import two_holders

from surehold.storage.base import Storage


@pytest.fixture(params=["memory", "file", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MEDIA[request.param](tmp_path)


def test_the_stale_one_of_two_holders_on_one_manager_is_refused(storage: Storage) -> None:
    with storage:
        two_holders.refuse_the_first_of_two_holders(storage)


def test_a_stale_holder_does_not_disturb_the_other_in_one_commit(storage: Storage) -> None:
    with storage:
        two_holders.refuse_one_of_a_commit(storage)
