"""`surehold selftest`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Annotated, Literal

import msgspec

from surehold.cli import framework as ui


class PromiseRow(msgspec.Struct, kw_only=True):
    """A promise, and whether it was kept."""

    verdict: Literal["PASS", "FAIL", "SKIP"]
    promise: str
    detail: str


class SelfTest(ui.Document, kw_only=True, tag="selftest"):
    """``selftest``"""

    storage: str
    passed: bool
    promises: Annotated[list[PromiseRow], ui.Rows("promise")]


@ui.command
def selftest(
    cli: ui.Cli,
    rounds: Annotated[int, ui.Option(help="How often a run is killed.", min=1)] = 10,
    seed: Annotated[int | None, ui.Option(help="To repeat a run of the test.")] = None,
) -> int:
    """Test the storage in its place: kill processes, damage bytes, fill it up.

    It works in a scratch area beside the storage and leaves the runs alone.
    """
    from surehold.testing.validation import main as validate

    words = [cli.settings.storage.value, "--rounds", str(rounds)]
    words += [] if seed is None else ["--seed", str(seed)]
    said = StringIO()
    with redirect_stdout(cli.terminal.stdout if cli.for_people else said):
        code = int(validate(words))
    if not cli.for_people:
        promises = list(_promises(said.getvalue()))
        cli.give(SelfTest(storage=cli.address, passed=code == 0, promises=promises), list)
    return code


def _promises(said: str) -> Iterator[PromiseRow]:
    for line in said.splitlines():
        verdict, _, rest = line.partition(" ")
        if verdict in ("PASS", "FAIL", "SKIP"):
            promise, _, detail = rest.partition(": ")
            yield PromiseRow(verdict=verdict, promise=promise, detail=detail)  # type: ignore[arg-type]
