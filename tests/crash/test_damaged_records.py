"""One damaged record costs the checkpoints up to the next keyframe; with a second copy, none."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.media import FULL, PLAIN, spread, times
from tests.crash.stored_runs import Stored, stored_on

from surehold import CheckpointManager, State
from surehold.errors import CorruptError, NotFoundError
from surehold.storage.base import RecordQuery
from surehold.storage.replicated.copies import repairable

MEDIA = (*PLAIN, "postgres", "valkey", "s3") if FULL else ("sqlite", "file", "file-zstd")
STEPS = times(140, 1000)
MOST = 128
ALL_CHAINS, LOOKS = 10, 50
"""After one in so many every chain is loaded, or every checkpoint is looked up by its id."""
SEQS = slice(*(int(n) if n else None for n in os.environ.get("SUREHOLD_RECORDS", ":").split(":")))
"""Which of the records are damaged in turn: all, or a part of them for a shorter job.

Of odd ones the header is damaged, of even ones the body: with an odd stride, both in turn.
"""

pytestmark = pytest.mark.timeout(36_000 if FULL else 300)


@pytest.fixture(params=MEDIA)
def medium(request: pytest.FixtureRequest) -> Iterator[str]:
    logging.disable(logging.WARNING)
    yield request.param
    logging.disable(logging.NOTSET)


def test_a_damaged_record_costs_at_most_the_checkpoints_up_to_the_next_keyframe(
    medium: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    stored = stored_on(medium, tmp_path, redundancy=0, steps=STEPS)
    worst = tried = 0
    for seq in sorted({*spread(range(1, STEPS + 1), 2), STEPS})[SEQS]:
        stored.damage(seq)
        lost = stored.lost_with(seq)
        with CheckpointManager(stored.address) as manager:
            if stored.lies_alone:
                only_these_are_lost(stored, manager, lost, tried)
            assert is_known(stored, manager, lost, tried)
        go_on(stored, lost.start - 1 if lost.stop > STEPS else STEPS)
        if not stored.lies_alone:
            with CheckpointManager(stored.address) as manager:
                only_these_are_lost(stored, manager, lost, tried)
        worst, tried = max(worst, len(lost)), tried + 1
    assert worst <= MOST
    finding(f"a damaged record, {medium}", tried, f"records: at most {worst} checkpoints lost")


def test_with_a_second_copy_a_damaged_record_costs_nothing(
    medium: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    stored = stored_on(medium, tmp_path, redundancy=1, steps=STEPS)
    tried = 0
    for seq in sorted({*spread(range(1, STEPS + 1), 1), STEPS})[SEQS]:
        stored.damage(seq)
        with CheckpointManager(stored.address) as manager:
            only_these_are_lost(stored, manager, range(seq, seq), tried)
            listed = manager.storage.headers(RecordQuery(run_id="run"))
            assert {header.id for header in listed} == {*stored.ids}
            assert not is_known(stored, manager, range(0), tried)
        go_on(stored, STEPS)
        tried += 1
    finding(f"a damaged record with a second copy, {medium}", tried, "records: 0 checkpoints lost")


def is_known(stored: Stored, manager: CheckpointManager, lost: range, tried: int) -> bool:
    """True if damage is reported, by `verify` or by what it relies on; all else must be whole."""
    inspection = repairable(manager.storage).inspect("run")
    if inspection is not None and stored.lies_alone:
        whole = {record.header.seq: record for record in inspection.records}
        for record in stored.records:
            assert record.header.seq in lost or whole[record.header.seq] == record
    if tried % LOOKS == 0:
        return not all(manager.verify())
    return inspection is None or bool(inspection.problems)


def only_these_are_lost(
    stored: Stored, manager: CheckpointManager, lost: range, tried: int
) -> None:
    """Load the last whole checkpoint of chains, which reads all records before it in each.

    The chains that were hit and the newest one are loaded each time, all of them now and then:
    that the others are whole is also what `is_known` reads in every record.
    """
    hit = range(lost.start, max(lost.stop, lost.start + 1))
    for chain in stored.chains:
        if tried % ALL_CHAINS and chain != stored.chains[-1] and not {*chain} & {*hit}:
            continue
        whole = [step for step in chain if step not in lost]
        if whole:
            assert stored.log_at(manager, whole[-1]) == [*range(1, whole[-1] + 1)]
    # An object store may have a record in two objects.
    for step in {lost[0], lost[-1]} if lost and stored.lies_alone else ():
        with pytest.raises((CorruptError, NotFoundError)):
            manager.load_checkpoint(stored.ids[step - 1])


def go_on(stored: Stored, newest: int) -> None:
    """Resume from the newest whole checkpoint, and see that nothing saved then is lost."""
    with CheckpointManager(stored.address, on_corrupt="fallback") as manager:
        state = manager.resume_from_latest("run")
        assert isinstance(state, State)
        if stored.lies_alone:
            assert state.step == newest
        else:  # the record may have been in two objects
            assert newest <= state.step <= STEPS
            newest = state.step
        saved = manager.save_checkpoint(state.append("log", "0 next").at(step=newest + 1))
    with CheckpointManager(stored.address) as manager:
        loaded = manager.load_checkpoint(saved)
        assert isinstance(loaded, State) and len(loaded["log"]) == newest + 1
        assert manager.resume_from_latest("run") == loaded
