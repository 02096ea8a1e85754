"""Who may take a run."""

from __future__ import annotations

import pytest

from surehold.core.records.lease import Lease, Owner, check_free, released, renewed, taken
from surehold.errors import ConflictError, LeaseHeldError

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


OTHER = Owner(host="box/1234", boot="b", pid=78, started="9")


def test_every_taking_raises_the_epoch() -> None:
    first = taken(None, "r", OWNER, now=10.0, ttl=30.0, owner_is_dead=False)
    assert first == Lease("r", 1, OWNER, expires_at=40.0)
    after_release = taken(
        released(first, first), "r", OTHER, now=11.0, ttl=30.0, owner_is_dead=False
    )
    assert after_release == Lease("r", 2, OTHER, expires_at=41.0)
    after_death = taken(after_release, "r", OWNER, now=12.0, ttl=30.0, owner_is_dead=True)
    assert after_death.epoch == 3
    with pytest.raises(LeaseHeldError):
        taken(after_death, "r", OTHER, now=13.0, ttl=30.0, owner_is_dead=False)


def test_a_lease_is_renewed_only_by_who_still_holds_it() -> None:
    assert renewed(HELD, HELD, now=50.0, ttl=30.0) == Lease("r", 3, OWNER, expires_at=80.0)
    lost = [
        None,
        Lease("r", 4, OTHER, 200.0),
        Lease("r", 4, OWNER, 200.0),
        Lease("r", 3, OTHER, 200.0),
        Lease("r", 3, None, 100.0),
    ]
    for newest in lost:
        with pytest.raises(ConflictError, match="was lost") as caught:
            renewed(newest, HELD, now=50.0, ttl=30.0)
        assert caught.value.epoch == (newest.epoch if newest else 0)
        assert released(newest, HELD) is None


def test_a_lease_given_back_keeps_its_epoch_and_has_no_owner() -> None:
    assert released(HELD, HELD) == Lease("r", 3, None, expires_at=100.0)
