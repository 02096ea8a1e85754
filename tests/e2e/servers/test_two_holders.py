"""Of two holders of one run in one process, the stale one is refused on the servers too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.media import open_medium
from tests.engine.runs import two_holders

from surehold import Storage


@pytest.mark.parametrize("medium", ["postgres", "valkey"])
@pytest.mark.parametrize(
    "refuse", [two_holders.refuse_the_first_of_two_holders, two_holders.refuse_one_of_a_commit]
)
def test_the_stale_one_of_two_holders_is_refused(
    medium: str, refuse: Callable[[Storage], None], tmp_path: Path
) -> None:
    with open_medium(medium, tmp_path) as storage:
        refuse(storage)
