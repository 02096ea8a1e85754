"""Who may take a run."""

from __future__ import annotations

import pytest

from holdfast.core.lease import Lease, Owner, check_free
from holdfast.errors import ConflictError, LeaseHeldError

OWNER = Owner(host="box/1234", boot="b", pid=77, started="9")
HELD = Lease("r", 3, OWNER, expires_at=100.0)


@pytest.mark.parametrize(
    ("lease", "now", "dead"),
    [
        (None, 0.0, False),
        (Lease("r", 3, None, expires_at=100.0), 0.0, False),
        (HELD, 100.0, False),
        (HELD, 101.0, False),
        (HELD, 0.0, True),
    ],
)
def test_a_run_may_be_taken_that_nobody_alive_holds(
    lease: Lease | None, now: float, dead: bool
) -> None:
    check_free(lease, now=now, owner_is_dead=dead)


def test_a_held_run_may_not_be_taken_and_its_holder_is_named() -> None:
    with pytest.raises(LeaseHeldError, match="'r' is held by process 77 on box for") as caught:
        check_free(HELD, now=99.0, owner_is_dead=False)
    error = caught.value
    assert (error.owner, error.until, error.run_id) == (OWNER, 100.0, "r")
    assert isinstance(error, ConflictError)
    assert error.hint
