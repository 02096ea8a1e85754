"""Everything a manager does, in any order, on every medium, against a simple model.

What is kept loads exactly, what is not is gone, nothing pinned or newest ever goes, and the
journals stay sound.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.crash.media import EVERY, FULL, KEY, SERVERS, open_medium, times
from tests.crash.processes import ForkServer
from tests.machine.model import Checkpoint, Model

from surehold import AgentState, CheckpointManager, MemoryStorage, Rules, State, Storage
from surehold.errors import ConflictError, NotFoundError, UsageError, WrongKeyError

SAMPLE = ("memory", "sqlite", "file", "file-gzip", "file-zstd", "sqlite-zstd-encrypted")
MEDIA = ("memory", "memory-encrypted", *EVERY, *SERVERS) if FULL else (*SAMPLE, "valkey")
NAMES = ("", "job", "team")
TAGS = ("good", "best")

values = st.one_of(
    st.integers(-5, 5),
    st.text(max_size=4),
    st.lists(st.integers(0, 3), max_size=3),
    st.just((1, "two")),
    st.datetimes(timezones=st.just(UTC)),
    st.integers(1, 4_000).map(lambda size: "x" * size),
)
places = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["routine", "recovery", "pre_operation", "manual"]),
        "status": st.sampled_from(["running", "completed", "failed"]),
        "tags": st.lists(st.sampled_from(TAGS), unique=True),
        "metadata": st.dictionaries(st.sampled_from("mn"), st.integers(0, 2), max_size=1),
    },
)
counts = st.integers(1, 4)
ages = st.sampled_from(["2h", "1d", "3d", "1m"])
every_rule = {
    **dict.fromkeys(
        ["keep_last", "keep_hourly", "keep_daily", "keep_weekly", "keep_monthly", "keep_yearly"],
        counts,
    ),
    **dict.fromkeys(
        [
            *("keep_within", "keep_within_hourly", "keep_within_daily", "keep_within_weekly"),
            *("keep_within_monthly", "keep_within_yearly", "keep_failed", "max_age"),
        ],
        ages,
    ),
    "keep_every": counts,
    "keep_tags": st.lists(st.sampled_from(["good", "good,best", ""]), min_size=1, max_size=2),
    "keep_status": st.just(["failed"]),
    "keep_until_released": st.just(True),
    "delete_on_success": st.just(True),
}


def some_rules(most: int) -> st.SearchStrategy[dict[str, Any]]:
    """A few of the rules."""
    names = st.lists(st.sampled_from(sorted(every_rule)), min_size=1, max_size=most, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({n: every_rule[n] for n in chosen}))


all_rules = st.one_of(
    st.builds(Rules.by_kind_default),
    st.builds(
        lambda own, by_kind, group_by: Rules(
            **own, by_kind={kind: Rules(**r) for kind, r in by_kind.items()}, group_by=group_by
        ),
        some_rules(3),
        st.dictionaries(st.sampled_from(["routine", "recovery"]), some_rules(2), max_size=1),
        st.sampled_from(["run", "run", "name", "all"]),
    ),
)


people = st.sampled_from(["manager", "operator"])


class Machine(RuleBasedStateMachine):
    """A storage, the manager that works on it, and the model of what should be in it."""

    medium = "memory"
    server: ForkServer
    steps: Counter[str]

    checkpoints: Bundle[str] = Bundle("checkpoints")
    """Ids, of which some may be gone."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="surehold-"))
        self.model = Model()
        self.hands: dict[tuple[str, str], Any] = {}
        """The states that the application works with, by run and scope."""
        self.now = datetime(2026, 3, 29, 12, tzinfo=UTC)
        self.rules = Rules()
        self.begun = 0
        self.keys = [KEY] if self.medium.endswith("-encrypted") else []
        """The keys that runs were encrypted with, the one of now last."""
        self.adrift: set[tuple[str, str]] = set()
        """Of those, the ones whose checkpoint is gone: they go on from whatever is there."""
        self.stale: set[tuple[str, str]] = set()
        """Of those, the ones that a manager which never saw them must refuse."""
        self.storage = self.open()
        self.manager = self.manage(self.rules)
        self.operator = self.manage(Rules())
        """Someone else who looks at the runs and marks some of their checkpoints."""

    def open(self) -> Storage:
        if self.medium.startswith("memory"):
            return MemoryStorage()
        return open_medium(self.medium, self.directory)

    def manage(self, rules: Rules) -> CheckpointManager:
        """A manager whose clock is the machine's."""
        manager = self.open_manager(retention=rules)
        clock: Callable[[], datetime] = lambda: self.now  # noqa: E731
        manager.face.journal._clock = clock
        manager.retention._clock = clock
        return manager

    def open_manager(self, **options: Any) -> CheckpointManager:
        """A manager that knows nothing yet."""
        key = self.keys[-1] if self.keys else None
        return CheckpointManager(self.storage, encryption_key=key, **options)

    def teardown(self) -> None:
        self.steps["histories"] += 1
        try:
            self.check(thorough=True)
        finally:
            self.storage.close()
            shutil.rmtree(self.directory)

    # What the application does

    @initialize()
    def begin_the_first(self) -> None:
        self.begin("job")

    @rule(name=st.sampled_from(NAMES))
    def begin(self, name: str) -> None:
        self.begun += 1
        run_id = f"run-{self.begun}"
        self.hands[run_id, ""] = State.new({"log": []}, run_id=run_id, name=name)

    @rule(name=st.sampled_from(NAMES[1:]))
    def begin_agent(self, name: str) -> None:
        self.begun += 1
        run_id = f"run-{self.begun}"
        self.hands[run_id, ""] = AgentState(agent_id=name, run_id=run_id)

    @rule(data=st.data())
    def begin_scope(self, data: st.DataObject) -> None:
        runs = [
            run_id
            for (run_id, scope), hand in self.hands.items()
            if isinstance(hand, State) and not scope and not self.model.visible(run_id, "child")
        ]
        if not runs:
            return
        run_id = data.draw(st.sampled_from(sorted(runs)))
        name = self.hands[run_id, ""].name
        self.hands[run_id, "child"] = State.new({}, run_id=run_id, name=name).at(scope="child")

    @precondition(lambda self: self.hands)
    @rule(target=checkpoints, data=st.data(), place=places)
    def save(self, data: st.DataObject, place: dict[str, Any]) -> Any:
        key = self.some_hand(data)
        hand = self.hands[key]
        if key in self.stale:
            return self.save_stale(key)
        if isinstance(hand, AgentState):
            return self.save_agent(key, hand, data)
        parent = hand.checkpoint_id
        change = data.draw(st.sampled_from(["append", "set", "without", "nothing"]))
        if change == "append":
            hand = hand.append("log", *data.draw(st.lists(values, min_size=1, max_size=2)))
        elif change == "set":
            hand = hand.set(data.draw(st.sampled_from("abc")), data.draw(values))
        elif change == "without":
            hand = hand.without(data.draw(st.sampled_from("abc")))
        hand = hand.at(step=hand.step + 1, **place)
        checkpoint_id = self.manager.save_checkpoint(hand)
        assert hand.checkpoint_id == checkpoint_id
        self.hands[key] = hand
        return self.saved(checkpoint_id, hand, hand.place, parent)

    def save_stale(self, key: tuple[str, str]) -> Any:
        hand = self.hands.pop(key)
        self.stale.discard(key)
        if isinstance(hand, AgentState):
            hand.step_number += 1
        else:
            hand = hand.at(step=hand.step + 1)
        with pytest.raises(ConflictError):
            self.manager.save_checkpoint(hand)
        return multiple()

    def save_agent(self, key: tuple[str, str], hand: AgentState, data: st.DataObject) -> str:
        hand.step_number += 1
        hand.conversation_history.append({"content": data.draw(st.text(max_size=5))})
        hand.status = data.draw(st.sampled_from(["running", "completed", "failed"]))
        checkpoint_id = self.manager.save_checkpoint(hand)
        assert hand.checkpoint_id == checkpoint_id
        place = State.new(run_id=key[0], name=hand.agent_id).at(
            step=hand.step_number, status=hand.status
        )
        kept = copy.deepcopy(hand)
        return self.saved(checkpoint_id, kept, place.place, hand.parent_checkpoint_id)

    def saved(
        self, checkpoint_id: str, state: Any, place: Any, parent: str | None, *, prune: bool = True
    ) -> str:
        if (place.run_id, place.scope) in self.adrift:
            self.adrift.discard((place.run_id, place.scope))
            entry = next(
                e
                for e in self.operator.list_checkpoints(place.run_id)
                if e.checkpoint_id == checkpoint_id
            )
            parent = entry.parent_checkpoint_id
        checkpoint = Checkpoint(
            id=checkpoint_id,
            run_id=place.run_id,
            name=place.name,
            scope=place.scope,
            place=len(self.model.saved) + 1,
            state=state,
            step=place.step,
            kind=place.kind,
            status=place.status,
            parent=parent,
            saved_at=self.now,
            tags=place.tags,
            metadata=dict(place.metadata),
        )
        self.model.add(checkpoint)
        if prune:
            self.model.prune_as_saved(checkpoint, self.rules, self.now)
        self.let_go()
        return checkpoint_id

    @precondition(lambda self: self.hands)
    @rule(data=st.data())
    def save_again(self, data: st.DataObject) -> None:
        """A state that says nothing new is not written again."""
        key = self.some_hand(data)
        hand = self.hands[key]
        fixed = isinstance(hand, State) and key not in self.stale | self.adrift
        if fixed and hand.checkpoint_id is not None:
            assert self.model.get(hand.checkpoint_id).state == hand
            assert self.manager.save_checkpoint(hand) == hand.checkpoint_id

    @precondition(lambda self: self.hands)
    @rule(target=checkpoints, data=st.data())
    def save_by_force(self, data: st.DataObject) -> Any:
        key = self.some_hand(data)
        hand = self.hands[key]
        if key in self.stale:
            return self.save_stale(key)
        if not isinstance(hand, State):
            return self.save_agent(key, hand, data)
        parent = hand.checkpoint_id
        return self.saved(self.manager.save_checkpoint(hand, force=True), hand, hand.place, parent)

    @rule(checkpoint_id=checkpoints)
    def go_on_from(self, checkpoint_id: str) -> None:
        """Load any checkpoint: what is saved next is a branch."""
        one = self.model.get(checkpoint_id)
        if one.visible:
            self.take(one.run_id, one.scope, self.manager.load_checkpoint(checkpoint_id))

    def take(self, run_id: str, scope: str, state: Any) -> None:
        self.hands[run_id, scope] = state
        self.adrift.discard((run_id, scope))
        self.stale.discard((run_id, scope))

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(self.model.runs))
        state = self.manager.resume_from_latest(run_id)
        newest = self.model.newest(run_id)
        assert state == (None if newest is None else newest.state)
        if newest is not None:
            self.take(run_id, "", state)

    @rule(target=checkpoints, checkpoint_id=checkpoints)
    def fork(self, checkpoint_id: str) -> str:
        source = self.model.get(checkpoint_id)
        self.begun += 1
        run_id = f"run-{self.begun}"
        if not source.visible:
            with pytest.raises(NotFoundError):
                self.manager.fork_from_checkpoint(checkpoint_id, run_id)
            return checkpoint_id
        made = self.manager.fork_from_checkpoint(checkpoint_id, run_id)
        if isinstance(made, State):
            assert made.to_dict() == source.state.to_dict()
        else:
            assert made.conversation_history == source.state.conversation_history
        origin = {"run_id": source.run_id, "checkpoint_id": source.id, "step": source.step}
        made_id = str(made.checkpoint_id)
        self.hands[run_id, source.scope] = made
        self.model.add(
            Checkpoint(
                id=made_id,
                run_id=run_id,
                name=source.name,
                scope=source.scope,
                place=len(self.model.saved) + 1,
                state=copy.deepcopy(made),
                step=source.step,
                kind="fork",
                status="running",
                parent=source.id,
                saved_at=self.now,
                metadata={"forked_from": origin},
            )
        )
        return made_id

    @rule(checkpoint_id=checkpoints, tags=st.sets(st.sampled_from(TAGS), min_size=1), who=people)
    def tag(self, checkpoint_id: str, tags: set[str], who: str) -> None:
        one = self.model.get(checkpoint_id)
        if self.acts_on(one, lambda: getattr(self, who).tag(one.id, *sorted(tags))):
            one.tags = tuple(dict.fromkeys([*one.tags, *sorted(tags)]))

    @rule(checkpoint_id=checkpoints, tag=st.sampled_from(TAGS), who=people)
    def untag(self, checkpoint_id: str, tag: str, who: str) -> None:
        one = self.model.get(checkpoint_id)
        if self.acts_on(one, lambda: getattr(self, who).tag(one.id, remove=[tag])):
            one.tags = tuple(t for t in one.tags if t != tag)

    @rule(checkpoint_id=checkpoints, who=people)
    def pin(self, checkpoint_id: str, who: str) -> None:
        one = self.model.get(checkpoint_id)
        if self.acts_on(one, lambda: getattr(self, who).pin(one.id)):
            one.pinned = True

    @rule(checkpoint_id=checkpoints, who=people)
    def unpin(self, checkpoint_id: str, who: str) -> None:
        one = self.model.get(checkpoint_id)
        if self.acts_on(one, lambda: getattr(self, who).unpin(one.id)):
            one.pinned = False

    @rule(checkpoint_id=checkpoints, who=people)
    def release(self, checkpoint_id: str, who: str) -> None:
        one = self.model.get(checkpoint_id)
        if self.acts_on(one, lambda: getattr(self, who).release(one.id)):
            one.released = True

    @rule(checkpoint_id=consumes(checkpoints), who=people)
    def delete(self, checkpoint_id: str, who: str) -> None:
        one = self.model.get(checkpoint_id)
        if self.acts_on(one, lambda: getattr(self, who).delete_checkpoint(one.id)):
            self.model.hide([one])
            self.let_go()

    @rule(checkpoint_id=checkpoints)
    def delete_run(self, checkpoint_id: str) -> None:
        run_id = self.model.get(checkpoint_id).run_id
        there = self.model.visible(run_id)
        if there:
            assert self.manager.delete_run(run_id) >= len(there)
            self.model.hide(there)
            self.let_go()

    @rule(rules=all_rules)
    def change_the_rules(self, rules: Rules) -> None:
        """Another manager takes over, with other rules and the same states in hand."""
        self.rules = rules
        self.manager = self.manage(rules)
        self.let_go(of_cursors=True)

    @precondition(lambda self: self.model.visible())
    @rule(data=st.data(), rules=all_rules)
    def clean_up(self, data: st.DataObject, rules: Rules) -> None:
        """The operator prunes a run, or all runs of a name, while the application is at work."""
        one = data.draw(st.sampled_from(self.model.visible()), label="of")
        by_name = bool(one.name) and data.draw(st.booleans(), label="by name")
        chosen = {c.run_id for c in (self.model.of_name(one.name) if by_name else [one])}
        count = self.manage(rules).cleanup_old_checkpoints(one.name if by_name else one.run_id)
        assert count == self.model.prune_runs(chosen, rules, self.now)
        self.let_go()

    @precondition(lambda self: self.model.visible() and not self.rules.empty)
    @rule(data=st.data())
    def clean_up_at_work(self, data: st.DataObject) -> None:
        """The application prunes what it works on."""
        one = data.draw(st.sampled_from(self.model.visible()), label="of")
        count = self.manager.cleanup_old_checkpoints(one.run_id)
        assert count == self.model.prune_runs([one.run_id], self.rules, self.now)
        self.let_go()

    @rule(hours=st.sampled_from([-1, 1, 5, 30, 24 * 9, 24 * 40]))
    def time_passes(self, hours: int) -> None:
        self.now += timedelta(hours=hours)

    @precondition(lambda self: not self.medium.startswith("memory"))
    @rule()
    def reopen(self) -> None:
        self.steps["reopened"] += 1
        self.storage.close()
        self.storage = self.open()
        self.take_over()

    def take_over(self) -> None:
        """Other managers go on from here."""
        self.manager = self.manage(self.rules)
        self.operator = self.manage(Rules())
        self.let_go(of_cursors=True)

    @precondition(lambda self: not self.medium.startswith("memory") and self.resumable())
    @rule(target=checkpoints, data=st.data(), value=st.text(max_size=4), stored=st.booleans())
    def crash(self, data: st.DataObject, value: str, stored: bool) -> Any:
        """The application goes on with a run, and is killed in the middle of a save."""
        run_id = data.draw(st.sampled_from(self.resumable()), label="run")
        newest = self.model.newest(run_id)
        state = self.manager.resume_from_latest(run_id)
        assert newest is not None and isinstance(state, State)
        self.storage.close()
        key = self.keys[-1] if self.keys else None
        told = (self.medium, str(self.directory), key, run_id, value, self.now.isoformat(), stored)
        with self.server.start("tests.machine.crashing:save_and_die", *told) as child:
            heard = child.hear_all()
            assert child.wait() == -9, heard
        self.steps["crashed"] += 1
        self.storage = self.open()
        self.take_over()
        known = {one.id for one in self.model.saved}
        listed = {entry.checkpoint_id for entry in self.open_manager().list_checkpoints(run_id)}
        assert len(listed - known) == stored, "what was stored when it was killed is there"
        if not stored:
            return multiple()
        state = state.set("crashed", value).at(step=state.step + 1)
        (made,) = listed - known
        self.saved(made, state, state.place, newest.id, prune=False)
        self.let_go(of_cursors=True)
        return made

    def resumable(self) -> list[str]:
        """The runs that a `State` can be resumed from."""
        newest = [(run_id, self.model.newest(run_id)) for run_id in self.model.runs]
        return [run_id for run_id, one in newest if one and isinstance(one.state, State)]

    @precondition(lambda self: self.keys and self.model.visible())
    @rule()
    def rotate(self) -> None:
        """Another key from now on; the one of before opens nothing any more."""
        old = self.keys[-1]
        self.keys.append(f"{len(self.keys):064x}")
        runs = {one.run_id for one in self.model.visible()}
        assert self.open_manager(old_keys=[old]).rotate_keys() >= len(runs)
        self.steps["rotated"] += 1
        with pytest.raises(WrongKeyError):
            CheckpointManager(self.storage, encryption_key=old).load_checkpoint(
                self.model.visible()[0].id
            )
        self.take_over()

    # What must be true

    @invariant()
    def sound(self) -> None:
        self.check(thorough=False)

    def check(self, *, thorough: bool) -> None:
        """Look at everything through a manager that knows nothing yet."""
        looking = self.open_manager()
        expected = self.model.visible()
        listed = {entry.checkpoint_id: entry for entry in looking.list_checkpoints()}
        assert listed.keys() == {one.id for one in expected}
        for one in expected:
            entry = listed[one.id]
            assert (entry.run_id, entry.name, entry.scope) == (one.run_id, one.name, one.scope)
            assert (entry.step, entry.kind, entry.status) == (one.step, one.kind, one.status)
            assert (set(entry.tags), entry.metadata) == (set(one.tags), one.metadata)
            assert entry.parent_checkpoint_id == one.parent
        for run_id in {one.run_id for one in expected}:
            ids = [entry.checkpoint_id for entry in looking.list_checkpoints(run_id)]
            assert ids == [one.id for one in self.model.visible(run_id)]
        chosen = expected if thorough else expected[:3] + expected[-1:]
        for one in chosen:
            assert looking.load_checkpoint(one.id) == one.state
        if thorough:
            self.check_views(looking)
        assert all(looking.verify())

    def check_views(self, looking: CheckpointManager) -> None:
        for one in self.model.saved:
            if not one.visible:
                assert not looking.exists(one.id)
                with pytest.raises(NotFoundError):
                    looking.load_checkpoint(one.id)
        for tag in TAGS:
            ids = {entry.checkpoint_id for entry in looking.list_checkpoints(tag=tag)}
            assert ids == {one.id for one in self.model.visible() if tag in one.tags}
        for name in NAMES[1:]:
            newest = self.model.to_resume(name)
            found = looking.resume_from_latest(name)
            assert found == (None if newest is None else newest.state)
        for run_id in self.model.runs:
            newest = self.model.newest(run_id)
            found = looking.resume_from_latest(run_id)
            assert found == (None if newest is None else newest.state)

    # In between

    def some_hand(self, data: st.DataObject) -> tuple[str, str]:
        return data.draw(st.sampled_from(sorted(self.hands)), label="hand")

    def acts_on(self, one: Checkpoint, call: Callable[[], object]) -> bool:
        """Make a call about a checkpoint, which must be refused if that is gone."""
        if one.visible:
            call()
            return True
        with pytest.raises(NotFoundError):
            call()
        return False

    def let_go(self, *, of_cursors: bool = False) -> None:
        """Look at the states in hand again after checkpoints went, or another manager took over.

        What belongs to a run that is gone is dropped.
        """
        saved = {one.id: one for one in self.model.saved}
        for key, hand in [*self.hands.items()]:
            kept = saved.get(hand.checkpoint_id)
            if key[0] in self.model.runs and not self.model.visible(key[0]):
                del self.hands[key]
                self.adrift.discard(key)
                self.stale.discard(key)
            elif kept is None:
                continue
            elif not kept.visible:
                self.adrift.add(key)
                self.stale.discard(key)
            elif self.model.newest(*key) is kept:
                self.stale.discard(key)  # what came after it is gone
            elif of_cursors:
                self.stale.add(key)


def examine(
    machine: type[Machine],
    medium: str,
    server: ForkServer | None,
    examples: int,
    phases: tuple[Phase, ...] = tuple(Phase),
) -> Counter[str]:
    """Put a machine through many histories; what was done in them."""
    facts = {"medium": medium, "server": server, "steps": Counter()}
    made = type(f"{machine.__name__}_{medium.replace('-', '_')}", (machine,), facts)
    # Retention looks at once for what another manager deleted, not within a second.
    with patch.multiple("surehold.engine.retention.live", _LOOK_EVERY=0, _LIST_AGAIN=0):
        run_state_machine_as_test(
            made,
            settings=settings(
                max_examples=examples,
                stateful_step_count=50 if FULL else 20,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
                phases=phases,
                report_multiple_bugs=False,
            ),
        )
    steps: Counter[str] = made.steps
    return steps


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


@pytest.mark.timeout(7_200 if FULL else 120)
@pytest.mark.parametrize("medium", MEDIA)
def test_the_managers_do_what_the_model_says(
    medium: str, server: ForkServer, finding: Callable[..., None]
) -> None:
    steps = examine(Machine, medium, server, times(12, 400))
    what = ("reopened", "crashed", "rotated")
    seen = ", ".join(f"{steps[name]:,} times {name}" for name in what if steps[name])
    finding(
        f"all calls in any order against a model, {medium}",
        steps["histories"],
        f"histories, {seen or 'none reopened'}, 0 differ",
    )


class Forgetful(Machine):
    """A manager that takes tags and keeps none."""

    def manage(self, rules: Rules) -> CheckpointManager:
        manager = super().manage(rules)
        manager.tag = lambda *words, **options: None  # type: ignore[assignment, method-assign]
        return manager


def test_the_machine_sees_a_manager_that_forgets_tags(finding: Callable[..., None]) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        examine(Forgetful, "memory", None, 100, (Phase.generate,))
    finding("a manager that forgets tags", 1, "noticed", control=True)


def test_a_run_id_in_use_is_no_place_for_a_fork() -> None:
    manager = CheckpointManager(MemoryStorage())
    first = manager.save_checkpoint(State.new({"a": 1}, run_id="one"))
    manager.save_checkpoint(State.new({"b": 1}, run_id="two"))
    with pytest.raises(UsageError):
        manager.fork_from_checkpoint(first, "two")
