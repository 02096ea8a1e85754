"""All trials on all stores, and the table of what was seen."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tests.crash.processes import ForkServer

from proof.peers.stores import STORES, Store
from proof.peers.trials import TRIALS, Impossible, Seen

__all__ = ["compare", "ours_hold", "show", "try_all"]


def compare(short: bool, most: int | None = None) -> dict[str, Any]:
    """Make every trial on every store that is installed; what each showed."""
    times = {n: few if short else min(full, most or full) for n, (_, few, full) in TRIALS.items()}
    seen = {store.name: try_all(store, times) for store in STORES if store.version}
    return {
        "stores": [
            {"name": store.name, "version": store.version, "settings": store.settings}
            for store in STORES
        ],
        "trials": [
            {
                "trial": trial,
                "times": count,
                "seen": {name: asdict(results[trial]) for name, results in seen.items()},
            }
            for trial, count in times.items()
        ],
    }


def try_all(store: Store, times: dict[str, int]) -> dict[str, Seen]:
    """Make these trials on a store, each so often."""
    server = ForkServer(store.module)
    try:
        return {trial: _try(server, store, trial, count) for trial, count in times.items()}
    finally:
        server.close()


def _try(server: ForkServer, store: Store, trial: str, count: int) -> Seen:
    print(f"{store.name}: {trial} ...", file=sys.stderr, flush=True)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    scratch = Path(tempfile.mkdtemp(prefix="surehold-peers-", dir=memory))
    try:
        return TRIALS[trial][0](server, store, count, scratch)
    except Impossible as error:
        return Seen(f"skipped: {error}", True)
    except Exception as error:
        # A library that fails must not keep the others from being tried.
        traceback.print_exc()
        return Seen(f"failed: {type(error).__name__}: {error}"[:200], False)
    finally:
        shutil.rmtree(scratch)


def ours_hold(compared: dict[str, Any]) -> bool:
    """Whether nothing went wrong with Surehold."""
    return all(
        seen["holds"]
        for trial in compared["trials"]
        for name, seen in trial["seen"].items()
        if name.startswith("Surehold")
    )


def show(compared: dict[str, Any]) -> None:
    """Print the table, and what was compared."""
    stores = [store for store in compared["stores"] if store["version"]]
    table = Table(title="The same trials on other libraries, with the settings they come with")
    table.add_column("trial")
    table.add_column("times", justify="right")
    for store in stores:
        table.add_column(f"{store['name']} {store['version']}")
    for trial in compared["trials"]:
        cells = (escape(trial["seen"][store["name"]]["words"]) for store in stores)
        table.add_row(trial["trial"], f"{trial['times']:,}", *cells)
    console = Console()
    if not console.is_terminal:
        console = Console(width=170)
    console.print(table)
    for store in compared["stores"]:
        if not store["version"]:
            console.print(f"{store['name']}: not installed")
