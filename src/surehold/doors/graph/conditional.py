"""Routes: one of several functions, chosen once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from surehold.core.policy import OF_THE_RUN
from surehold.core.state import State
from surehold.core.values import decode
from surehold.doors.graph.items import Parts
from surehold.engine.runs.positions import CURRENT_STEP
from surehold.errors import UsageError


async def process_conditional(
    state: Any,
    choose: Callable[[Any], Any],
    routes: Mapping[str, Callable[[Any], Any]],
    default: Callable[[Any], Any] | None = None,
) -> Any:
    """Call the route that ``choose(state)`` names, and return its result.

    The choice is recorded: after a crash inside the route, the same one is taken. An unknown name
    takes *default*; without one, or if the route fails, a `StepError` with `.route` is raised.
    """
    if not routes and default is None:
        raise UsageError("there are no routes", hint="give at least one, or a default")
    parts = Parts()
    say = parts.here.say
    say("route.evaluate", route_count=len(routes))
    route = await _chosen(parts, state, choose)
    say("route.select", route=route, has_default=default is not None)
    handler = routes.get(route, default)
    good = state if isinstance(state, State) else None
    if handler is None:
        raise parts.failure(f"there is no route {route!r}", route=route, state=good)
    token = CURRENT_STEP.set(parts.at(1))
    try:
        result = await parts.call(handler, state)
    except Exception as error:
        say("route.execute", route=route, error=type(error).__name__)
        if isinstance(error, OF_THE_RUN):
            raise
        raise parts.failure(f"route {route!r} failed", error, route=route, state=good) from error
    finally:
        CURRENT_STEP.reset(token)
    say("route.execute", route=route, error=None)
    return result


async def _chosen(parts: Parts, state: Any, choose: Callable[[Any], Any]) -> str:
    known = parts.find("route")
    if known is not None:
        return decode(bytes(known.value))  # type: ignore[no-any-return]
    route = await parts.call(choose, state)
    if not isinstance(route, str):
        good = state if isinstance(state, State) else None
        raise parts.failure(f"a route is a string, not {route!r}", route=repr(route), state=good)
    await parts.keep("route", "", route, 0)
    return route
