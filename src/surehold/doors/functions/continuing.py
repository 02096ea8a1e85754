"""Workflows without an end: a run that begins anew with other arguments."""

from __future__ import annotations

from typing import Any, NoReturn

from surehold.engine.runs.positions import CallOrder, call_context
from surehold.errors import UsageError


class Continued(BaseException):
    """Carries the arguments out of the function; nothing of user code need catch it."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__("the run begins anew")
        self.arguments = args, kwargs


def continue_as_new(*args: Any, **kwargs: Any) -> NoReturn:
    """Begin this run anew, with these arguments and no recorded calls.

    For workflows without an end: what was recorded before is forgotten, so that the size of the
    run and the time of a resume do not grow. Messages not yet taken and
    published values are kept. Recorded calls of ``finally`` blocks on the way out belong to what is
    forgotten. In the workflow itself only, not in a step, a child or a branch of a `gather`.
    """
    context = call_context()
    if not isinstance(context, CallOrder) or not context.is_outermost:
        raise UsageError(
            "continue_as_new() is not called by the function of a workflow itself",
            hint="call it in a @surehold.workflow, outside of steps, children and gather()",
        )
    context.check()
    context.place("continue_as_new", None)
    raise Continued(args, kwargs)
