"""`surehold bisect`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Annotated, Any

from surehold.cli import framework as ui
from surehold.core.records import Header
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RecordQuery


class Bisected(ui.Document, kw_only=True, tag="bisected"):
    """``bisect``"""

    run_id: str
    checkpoint_id: str
    step: int
    node: str | None
    loads: int
    """Checkpoints that were loaded."""
    of: int
    """Checkpoints that there are."""


@ui.command
def bisect(
    cli: ui.Cli,
    run: Annotated[str, ui.Argument(help="The run.")],
    bad: Annotated[
        str | None, ui.Option(metavar="EXPR", help="Python; the state's keys are its names.")
    ] = None,
    test: Annotated[
        str | None,
        ui.Option(metavar="COMMAND", help="Gets the state as JSON; fails if it is bad."),
    ] = None,
) -> None:
    """Find the first step whose state is bad, by binary search and without any call.

    --bad 'plan is None' or --bad 'state["budget"] < 0' is true for a bad state; a command of
    --test ends with a code other than 0. From the first bad step on, all are taken to be bad.
    """
    if (bad is None) == (test is None):
        raise UsageError("give one of --bad and --test", hint="--bad 'len(messages) > 40'")
    missing: list[Exception] = []
    is_bad = _expression(bad, missing) if bad is not None else _command(test or "")
    found = cli.finder.run(run)
    query = RecordQuery(run_id=found.run_id, scope="")
    headers = [one for one in cli.storage.headers(query) if one.frame != "note"][::-1]
    reader, loaded = cli.manager.reader, []

    def look(header: Header) -> bool:
        loaded.append(header.seq)
        return is_bad(reader.load(header).state())

    at = first_bad(len(headers), lambda number: look(headers[number]))
    if at == len(headers):
        if missing:
            raise UsageError(
                f"--bad could be asked of no checkpoint of run {found.run_id!r}: {missing[-1]}",
                hint=f"surehold show {found.run_id} shows the keys of its newest state",
            )
        raise NotFoundError(
            f"no checkpoint of run {found.run_id!r} that was looked at is bad",
            hint=f"surehold show {found.run_id} shows the newest state",
        )
    header = headers[at]
    document = Bisected(
        run_id=found.run_id,
        checkpoint_id=header.id,
        step=header.step,
        node=header.node,
        loads=len(loaded),
        of=len(headers),
    )
    node = f" ({header.node})" if header.node else ""
    cli.give(
        document,
        lambda: [
            ui.Line.of(
                ui.Cell(f"{found.run_id}@{header.step}", "bold"), f"{node} is the first bad"
            ),
            f"{len(loaded)} of {len(headers)} checkpoints were loaded",
        ],
    )


def first_bad(count: int, is_bad: Callable[[int], bool]) -> int:
    """The first bad number below *count*, or *count*; later ones are all bad.

    >>> looked = []
    >>> first_bad(10_000, lambda n: looked.append(n) or n >= 1234), len(looked) <= 14
    (1234, True)
    """
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if is_bad(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _values(state: Any) -> dict[str, Any]:
    values: dict[str, Any] = dict(state.to_dict())
    return values


def _expression(text: str, missing: list[Exception]) -> Callable[[Any], bool]:
    """The test of a state; *missing* holds why none could be tested so far."""
    try:
        code = compile(text, "--bad", "eval")
    except SyntaxError as error:
        raise UsageError(
            f"--bad is not an expression: {error.msg}",
            hint="such as 'total < 0'; --test takes a command",
        ) from None

    def is_bad(state: Any) -> bool:
        names = {**_values(state), "state": _values(state), "step": getattr(state, "step", 0)}
        try:
            found = bool(eval(code, {}, names))
        except (NameError, KeyError, IndexError) as error:  # what it asks about is not there yet
            missing.append(error)
            return False
        missing.clear()
        return found

    return is_bad


def _command(command: str) -> Callable[[Any], bool]:
    def is_bad(state: Any) -> bool:
        text = ui.safe_json(_values(state))
        done = subprocess.run(command, shell=True, input=text, text=True, check=False)
        return done.returncode != 0

    return is_bad
