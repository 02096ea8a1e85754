"""Workflows in two versions, as after a deploy."""

from __future__ import annotations

from surehold import patched, step, wait_for, workflow

CALLS: list[str] = []


@step
def act(name: str) -> str:
    """Count its calls."""
    CALLS.append(name)
    return name


@workflow(name="order", version=1)
def order_1() -> str:
    """Two steps around a wait."""
    act("book")
    wait_for("go")
    return act("ship")


@workflow(name="order", version=2)
def order() -> str:
    """The same, and another step in runs that are new."""
    if patched("with a check"):
        act("check")
    act("book")
    wait_for("go")
    act("pack")
    return act("ship")


@workflow(name="order", version=3)
def order_3() -> str:
    """Another order of steps, which fits no run of the others."""
    act("pay")
    return act("ship")
