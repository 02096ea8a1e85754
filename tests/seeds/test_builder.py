"""`FleetBuilder` and `MagenticFleet`, found under the names that AgenticFleet gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.builders.fleets import manager, team

from surehold import Fleet, FleetBuilder, MagenticFleet
from surehold.errors import UsageError


async def test_a_builder_makes_a_fleet_that_saves_its_rounds(tmp_path: Path) -> None:
    fleet = (
        FleetBuilder()
        .with_agents(team())
        .with_manager("Be brief.", manager(2))
        .with_observability()
        .with_checkpointing(f"sqlite:///{tmp_path}/runs.db")
        .build()
    )
    assert isinstance(fleet, MagenticFleet) and MagenticFleet is Fleet
    result = await fleet.run("Analyze sales data")
    assert result.status == "completed"
    assert len(await fleet.list_checkpoints()) >= 2
    await fleet.close()


async def test_a_plan_review_makes_the_run_wait() -> None:
    builder = FleetBuilder().with_manager(model=manager(1)).with_agents(team())
    fleet = builder.with_plan_review().with_checkpointing("memory://").build()
    result = await fleet.run("Analyze sales data")
    assert (result.status, [one.node for one in result.waiting]) == ("waiting", ["plan"])
    await fleet.close()


def test_a_builder_without_a_model_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="model"):
        FleetBuilder().with_agents(team()).build()
