"""`surehold selftest`."""

from __future__ import annotations

import random
from itertools import chain
from typing import Annotated

from surehold.cli import framework as ui
from surehold.testing.selftest import PromiseVerdict, check_contract, check_storage


class SelfTest(ui.Document, kw_only=True, tag="selftest"):
    storage: str
    passed: bool
    promises: Annotated[list[PromiseVerdict], ui.Rows("promise")]


@ui.command
def selftest(
    cli: ui.Cli,
    rounds: Annotated[int, ui.Option(help="How often a run is killed.", min=1)] = 10,
    seed: Annotated[int | None, ui.Option(help="To repeat a run of the test.")] = None,
    contract: Annotated[
        str | None,
        ui.Option(metavar="MEDIUM", help="Also test a medium, or all, against the contract."),
    ] = None,
) -> int:
    """Test the storage in its place: kill processes, damage bytes, fill it up.

    It works in a scratch area beside the storage and leaves the runs alone. --contract holds
    memory, file or sqlite to every promise of a storage, and needs the extra `testing`.
    """
    seed = random.randrange(1 << 32) if seed is None else seed
    found = check_storage(cli.settings.storage.value, rounds, seed)
    promises: list[PromiseVerdict] = []
    out = cli.terminal.stdout
    for verdict in chain(found, check_contract(contract) if contract else ()):
        if cli.for_people:
            if not promises:
                out.write(f"{cli.address}, in a scratch area of its own, --seed {seed}\n")
            out.write(f"{verdict}\n")
            out.flush()
        promises.append(verdict)
    counts = {word: sum(one.verdict == word for one in promises) for word in ("PASS", "FAIL")}
    if cli.for_people:
        skipped = len(promises) - counts["PASS"] - counts["FAIL"]
        out.write(f"{counts['PASS']} passed, {counts['FAIL']} failed, {skipped} skipped\n")
    else:
        cli.give(SelfTest(storage=cli.address, passed=not counts["FAIL"], promises=promises), list)
    return int(counts["FAIL"] > 0)
