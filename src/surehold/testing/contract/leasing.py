"""Promises of the methods of `Leasing`."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from surehold.errors import ConflictError, LeaseHeldError
from surehold.storage.base import Lease, Leasing, Owner, Storage, this_process
from surehold.testing.contract.medium import Medium, infos, stored
from surehold.testing.journal import JournalWriter

# Hosts that are not this one: no process here can tell whether theirs live.
ANNA = Owner("anna.example", "boot-1", 17, "1000")
BERT = Owner("bert.example", "boot-2", 17, "1000")

_CHILD = """
import sys, msgspec
from surehold.storage.process import this_process
print(msgspec.json.encode(this_process()).decode(), flush=True)
sys.stdin.read()
"""


class LeasePromises(Medium):
    def test_a_free_run_can_be_taken(self, storage: Storage) -> None:
        lease = self.leasing(storage).take_lease("run", ANNA, now=1_000.5, ttl=30)
        assert lease == Lease("run", lease.epoch, ANNA, 1_030.5)
        assert lease.epoch >= 1
        for view in self.views(storage):
            assert self.leasing(view).lease_of("run") == lease

    def test_a_run_never_leased_has_no_lease(self, storage: Storage) -> None:
        JournalWriter().save(storage)
        assert self.leasing(storage).lease_of("run") is None
        assert self.leasing(storage).lease_of("none") is None

    def test_a_held_lease_names_its_owner_and_its_end(self, storage: Storage) -> None:
        lease = self.leasing(storage).take_lease("run", ANNA, now=1_000, ttl=30)
        for view in self.views(storage):
            with pytest.raises(LeaseHeldError) as held:
                self.leasing(view).take_lease("run", BERT, now=1_029.9, ttl=30)
            assert (held.value.run_id, held.value.owner, held.value.until) == ("run", ANNA, 1_030)
            assert self.leasing(view).lease_of("run") == lease

    def test_a_lease_of_a_live_process_of_this_host_is_held(self, storage: Storage) -> None:
        leasing = self.leasing(storage)
        leasing.take_lease("run", this_process(), now=1_000, ttl=30)
        with pytest.raises(LeaseHeldError):
            leasing.take_lease("run", ANNA, now=1_001, ttl=30)

    def test_an_expired_lease_can_be_taken_with_a_higher_epoch(self, storage: Storage) -> None:
        lease = self.leasing(storage).take_lease("run", ANNA, now=1_000, ttl=30)
        for n, view in enumerate(self.views(storage), 1):
            owner = (ANNA, BERT)[n % 2]
            lease, before = (
                self.leasing(view).take_lease("run", owner, now=1_000 + 30 * n, ttl=30),
                lease,
            )
            assert lease.epoch > before.epoch
            assert lease == Lease("run", lease.epoch, owner, 1_030 + 30 * n)

    def test_a_dead_owner_is_superseded_at_once(self, storage: Storage) -> None:
        leasing = self.leasing(storage)
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        ) as child:
            assert child.stdout is not None
            owner = msgspec.json.decode(child.stdout.readline(), type=Owner)
            first = leasing.take_lease("run", owner, now=1_000, ttl=3_600)
            with pytest.raises(LeaseHeldError):
                leasing.take_lease("run", ANNA, now=1_001, ttl=30)
            child.kill()
            child.wait()
        second = leasing.take_lease("run", ANNA, now=1_001, ttl=30)
        assert second == Lease("run", second.epoch, ANNA, 1_031)
        assert second.epoch > first.epoch

    def test_a_run_is_taken_with_its_head_and_newest_checkpoint(self, storage: Storage) -> None:
        opening = self.opening(storage)
        begun = opening.take_run("run", ANNA, now=1_000, ttl=30)
        assert (begun.lease, begun.head, begun.newest) == (
            Lease("run", begun.lease.epoch, ANNA, 1_030),
            None,
            None,
        )
        journal = JournalWriter()
        journal.save(storage)
        journal.save(storage)
        with pytest.raises(LeaseHeldError) as held:
            opening.take_run("run", BERT, now=1_029.9, ttl=30)
        assert (held.value.owner, held.value.until) == (ANNA, 1_030)
        self.leasing(storage).release_lease(begun.lease)
        above = begun.lease.epoch + 5
        taken = opening.take_run("run", ANNA, now=1_000, ttl=30, above=above)
        assert taken.lease == Lease("run", above + 1, ANNA, 1_030)
        for n, view in enumerate(self.views(storage), 1):
            taken = self.opening(view).take_run("run", BERT, now=1_000 + 30 * n, ttl=30)
            assert taken.lease == Lease("run", above + 1 + n, BERT, 1_030 + 30 * n)
            assert (taken.head, taken.newest) == view.head_and_newest("run")
            assert taken.head is not None and taken.head.seq == 2
            assert self.leasing(view).lease_of("run") == taken.lease

    def test_a_taken_run_has_all_that_the_holder_before_appended(self, storage: Storage) -> None:
        opening = self.opening(storage)
        first = opening.take_run("run", ANNA, now=1_000, ttl=30)
        journal, begun, refused = JournalWriter(), threading.Event(), threading.Event()

        def write() -> None:
            for _ in range(2_000):
                if storage.append([journal.batch(epoch=first.lease.epoch)])[0] is not None:
                    refused.set()
                    return
                begun.set()

        writer = threading.Thread(target=write)
        writer.start()
        assert begun.wait(60)
        taken = opening.take_run("run", BERT, now=1_031, ttl=30)
        writer.join(120)
        assert refused.is_set()
        assert (taken.head, taken.newest) == storage.head_and_newest("run")

    def test_leases_of_different_runs_do_not_meet(self, storage: Storage) -> None:
        leasing = self.leasing(storage)
        one = leasing.take_lease("one", ANNA, now=0, ttl=30)
        two = leasing.take_lease("two", BERT, now=0, ttl=30)
        assert (leasing.lease_of("one"), leasing.lease_of("two")) == (one, two)

    def test_of_threads_that_take_a_free_run_one_gets_it(self, storage: Storage) -> None:
        _check_one_takes([self.leasing(storage)] * 6)

    def test_of_storages_that_take_a_free_run_one_gets_it(self, directory: Path) -> None:
        self.must_survive()
        with ExitStack() as stack:
            opened = [stack.enter_context(self.open(directory)) for _ in range(6)]
            _check_one_takes([self.leasing(storage) for storage in opened])

    def test_a_renewed_lease_lasts_longer_and_keeps_its_epoch(self, storage: Storage) -> None:
        leasing = self.leasing(storage)
        lease = leasing.take_lease("run", ANNA, now=1_000, ttl=30)
        renewed = leasing.renew_lease(lease, now=1_020, ttl=30)
        assert renewed == Lease("run", lease.epoch, ANNA, 1_050)
        assert leasing.renew_lease(lease, now=1_021, ttl=30).expires_at == 1_051
        with pytest.raises(LeaseHeldError) as held:
            leasing.take_lease("run", BERT, now=1_040, ttl=30)
        assert held.value.until == 1_051
        for view in self.views(storage):
            assert self.leasing(view).lease_of("run") == Lease("run", lease.epoch, ANNA, 1_051)

    def test_an_expired_lease_that_nobody_took_can_be_renewed(self, storage: Storage) -> None:
        leasing = self.leasing(storage)
        lease = leasing.take_lease("run", ANNA, now=1_000, ttl=30)
        assert leasing.renew_lease(lease, now=2_000, ttl=30).expires_at == 2_030

    def test_a_lost_lease_cannot_be_renewed(self, storage: Storage) -> None:
        leasing = self.leasing(storage)
        lost = leasing.take_lease("run", ANNA, now=1_000, ttl=30)
        newest = leasing.take_lease("run", BERT, now=1_030, ttl=30)
        for view in self.views(storage):
            for now in (1_031, 2_000):
                with pytest.raises(ConflictError):
                    self.leasing(view).renew_lease(lost, now=now, ttl=30)
            assert self.leasing(view).lease_of("run") == newest

    def test_a_released_lease_cannot_be_renewed(self, storage: Storage) -> None:
        leasing = self.leasing(storage)
        lease = leasing.take_lease("run", ANNA, now=1_000, ttl=30)
        leasing.release_lease(lease)
        with pytest.raises(ConflictError):
            leasing.renew_lease(lease, now=1_001, ttl=30)
        after = leasing.lease_of("run")
        assert after is not None
        assert after.owner is None

    def test_a_lease_that_never_was_cannot_be_renewed(self, storage: Storage) -> None:
        with pytest.raises(ConflictError):
            self.leasing(storage).renew_lease(Lease("run", 1, ANNA, 30), now=0, ttl=30)
        assert self.leasing(storage).lease_of("run") is None

    def test_a_released_run_is_free_at_once_and_keeps_its_epoch(self, storage: Storage) -> None:
        lease = self.leasing(storage).take_lease("run", ANNA, now=1_000, ttl=30)
        self.leasing(storage).release_lease(lease)
        self.leasing(storage).release_lease(lease)
        for view in self.views(storage):
            released = self.leasing(view).lease_of("run")
            assert released is not None
            assert (released.epoch, released.owner) == (lease.epoch, None)
            again = self.leasing(view).take_lease("run", BERT, now=1_001, ttl=30)
            assert again == Lease("run", again.epoch, BERT, 1_031)
            assert again.epoch > lease.epoch
            self.leasing(view).release_lease(again)
            lease = again

    def test_releasing_a_lost_lease_leaves_the_newest_alone(self, storage: Storage) -> None:
        leasing = self.leasing(storage)
        lost = leasing.take_lease("run", ANNA, now=1_000, ttl=30)
        newest = leasing.take_lease("run", BERT, now=1_030, ttl=30)
        leasing.release_lease(lost)
        leasing.release_lease(Lease("none", 1, ANNA, 1_030))
        assert leasing.lease_of("run") == newest
        assert leasing.lease_of("none") is None

    def test_a_run_can_be_leased_before_its_first_record(self, storage: Storage) -> None:
        lease = self.leasing(storage).take_lease("run", ANNA, now=1_000, ttl=30)
        assert (infos(storage), stored(storage)) == ([], [])
        batch = JournalWriter().batch(epoch=lease.epoch)
        assert storage.append([batch]) == [None]
        for view in self.views(storage):
            assert tuple(view.read("run")) == batch.records
            assert self.leasing(view).lease_of("run") == lease

    def test_a_lease_can_be_asked_for_above_an_epoch(self, storage: Storage) -> None:
        first = self.leasing(storage).take_lease("run", ANNA, now=0, ttl=1, above=41)
        assert first.epoch == 42
        again = self.leasing(storage).take_lease("run", ANNA, now=5, ttl=1, above=7)
        assert again.epoch == 43
        for view in self.views(storage):
            assert self.leasing(view).lease_of("run") == again

    @pytest.mark.parametrize("released", [True, False], ids=["released", "held"])
    def test_a_lease_stays_with_its_epoch_when_the_run_is_deleted(
        self, storage: Storage, released: bool
    ) -> None:
        leasing = self.leasing(storage)
        leasing.take_lease("run", ANNA, now=0, ttl=1)
        lease = leasing.take_lease("run", ANNA, now=2, ttl=1)
        writer = JournalWriter()
        assert storage.append([writer.batch(epoch=lease.epoch)]) == [None]
        if released:
            leasing.release_lease(lease)
        storage.delete("run")
        for view in self.views(storage):
            kept = self.leasing(view).lease_of("run")
            assert kept is not None
            assert (kept.epoch, kept.owner is None) == (2, released)
            stale = JournalWriter().batch(epoch=1)
            assert isinstance(view.append([stale])[0], ConflictError)
            assert infos(view) == []

    def test_a_batch_of_an_older_epoch_is_a_conflict(self, storage: Storage) -> None:
        leasing, writer = self.leasing(storage), JournalWriter()
        old = leasing.take_lease("run", ANNA, now=1_000, ttl=30)
        assert storage.append([writer.batch(epoch=old.epoch)]) == [None]
        leasing.take_lease("run", BERT, now=1_030, ttl=30)
        late = writer.batch(epoch=old.epoch)
        for view in self.views(storage):
            conflict = view.append([late])[0]
            assert isinstance(conflict, ConflictError)
            assert (conflict.run_id, conflict.seq, conflict.head) == ("run", 2, 1)
            assert len(stored(view)) == 1

    def test_a_first_batch_of_an_older_epoch_is_a_conflict(self, storage: Storage) -> None:
        leasing = self.leasing(storage)
        old = leasing.take_lease("run", ANNA, now=1_000, ttl=30)
        leasing.take_lease("run", BERT, now=1_030, ttl=30)
        results = storage.append(
            [JournalWriter().batch(epoch=old.epoch), JournalWriter("other").batch(epoch=old.epoch)]
        )
        assert isinstance(results[0], ConflictError)
        assert results[1] is None
        assert [info.run_id for info in infos(storage)] == ["other"]

    def test_a_released_lease_still_refuses_an_older_epoch(self, storage: Storage) -> None:
        leasing, writer = self.leasing(storage), JournalWriter()
        old = leasing.take_lease("run", ANNA, now=1_000, ttl=30)
        new = leasing.take_lease("run", BERT, now=1_030, ttl=30)
        leasing.release_lease(new)
        assert isinstance(storage.append([writer.batch(epoch=old.epoch)])[0], ConflictError)

    def test_the_same_epoch_a_higher_one_and_none_are_taken(self, storage: Storage) -> None:
        leasing, writer = self.leasing(storage), JournalWriter()
        lease = leasing.take_lease("run", ANNA, now=1_000, ttl=30)
        epochs = (lease.epoch, lease.epoch + 5, None, lease.epoch)
        assert storage.append([writer.batch(epoch=epoch) for epoch in epochs]) == [None] * 4
        for view in self.views(storage):
            assert len(stored(view)) == 4


def _check_one_takes(takers: list[Leasing]) -> None:
    """All try at once to take one free run: one gets it, the others learn who."""
    start = threading.Barrier(len(takers))

    def attempt(n: int) -> Lease | LeaseHeldError:
        start.wait(30)
        try:
            return takers[n].take_lease("run", Owner(f"host-{n}", "", n, ""), now=0, ttl=30)
        except LeaseHeldError as held:
            return held

    with ThreadPoolExecutor(len(takers)) as pool:
        results = list(pool.map(attempt, range(len(takers))))
    (lease,) = [result for result in results if isinstance(result, Lease)]
    assert {r.owner for r in results if isinstance(r, LeaseHeldError)} == {lease.owner}
    assert [taker.lease_of("run") for taker in takers] == [lease] * len(takers)
