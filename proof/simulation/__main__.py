"""Workers by the thousand, in simulated time: throughput, fairness, and what failures cost.

    python -m proof.simulation [--workers 1000] [--runs 1000000] [--short] [--svg FILE]

The code of `Worker`, of claims, leases, limits and the fate of runs is the real one. The clock,
the network, the database's processors and the steps are simulated. The exit status is 1 if a run
was lost, or a step was begun that the worker had no right to.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from proof.simulation.curves import drawing
from proof.simulation.fleet import Fleet, Plan

_SIZES = (10, 30, 100, 300, 1000)
_WRONG = ("recorded steps begun again", "steps begun without a lease")
_LONGEST = 24 * 3600.0


def scaled(workers: int, measured: float = 60.0, **facts: Any) -> dict[str, Any]:
    """Steps a second of that many workers while there is a backlog."""
    warm = measured / 3
    backlog = int(workers * 8 * (warm + measured) / 2) + 1000
    plan = Plan(workers=workers, backlog=backlog, timers=0, **facts)
    fleet = Fleet(plan)
    world = fleet.world
    with fleet.running():
        world.run(lambda: world.monotonic() > warm)
        before, used = fleet.counts["steps recorded"], dict(fleet.database.used)
        world.run(lambda: world.monotonic() > warm + measured or not fleet.is_busy)
        seconds = world.monotonic() - warm
        busy = {
            kind: (spent - used.get(kind, 0)) / seconds
            for kind, spent in fleet.database.used.items()
        }
        steps = (fleet.counts["steps recorded"] - before) / seconds
    return {"workers": workers, "steps": steps, "processors": busy, "free": fleet.ideal}


def failing(plan: Plan, minute: float = 60.0) -> dict[str, Any]:
    """All runs to their end, while nodes die, freeze and lose touch and the database restarts.

    *minute* is the length of one in the schedule of failures.
    """
    fleet = Fleet(plan)
    world, database, every = fleet.world, fleet.database, plan.workers
    faults: list[tuple[float, str]] = []

    def at(when: float, told: str, what: Any) -> None:
        def happen(_: Any) -> None:
            faults.append((world.monotonic(), told))
            what()

        world.call_at(world.now + minute * when, happen)

    def die() -> None:
        for node in fleet.nodes[: every // 10]:
            node.is_dead = True
            world.call_at(world.now + minute / 2, fleet.add_worker, f"{node.name}-new")

    def freeze() -> None:
        for node in fleet.nodes[every // 10 : every // 10 + every // 20]:
            node.stands_until = world.now + 4 * plan.lease

    def cut(is_cut_off: bool) -> None:
        for node in fleet.nodes[every // 5 : every // 4]:
            node.is_cut_off = is_cut_off

    def restart(is_away: bool) -> None:
        database.is_away = is_away
        database.restarts += 1

    at(2, f"{every // 10} nodes die", die)
    at(4, f"{every // 20} nodes freeze", freeze)
    at(6, f"{every // 20} nodes are cut off", lambda: cut(True))
    at(8, "they are back", lambda: cut(False))
    at(10, "the database is away", lambda: restart(True))
    at(10.5, "it is back", lambda: restart(False))
    every_run = plan.backlog + plan.timers
    with fleet.running():
        world.run(lambda: fleet.counts["ended"] == every_run or world.monotonic() > _LONGEST)
        minutes = world.monotonic() / 60
    late = sorted(fleet.late) or [0.0]
    return {
        "runs": every_run,
        "ended": fleet.counts["ended"],
        "minutes": minutes,
        "counts": dict(fleet.counts),
        "faults": faults,
        "curve": sorted((10 * at, count / 10) for at, count in fleet.ended.items()),
        "fairness": fleet.fairness(),
        "late": {p: late[min(int(len(late) * p / 100), len(late) - 1)] for p in (50, 99, 100)},
    }


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    began = time.process_time()
    sizes = [size for size in _SIZES if not options.short or size <= 100]
    found: dict[str, Any] = {"scale": {}}
    for seconds in (2.0, 0.2):
        found["scale"][seconds] = rows = []
        for size in sizes:
            row = scaled(size, step_seconds=seconds, processors=options.processors)
            rows.append(row)
            busy = sum(row["processors"].values())
            print(
                f"{size:5} workers, steps of {seconds} s: {row['steps']:8,.0f} steps/s of"
                f" {row['free']:8,.0f}; the database uses {busy:5.2f} of {options.processors}",
                flush=True,
            )
    plan = Plan(
        workers=options.workers,
        backlog=options.runs // 5,
        timers=options.runs - options.runs // 5,
        spread=options.spread,
        processors=options.processors,
    )
    found["failing"] = told = failing(plan)
    print(f"{told['ended']:,} of {told['runs']:,} runs ended after {told['minutes']:.0f} minutes")
    for name, number in sorted(told["counts"].items()):
        print(f"    {number:10,} {name}")
    print(f"    timers begin {told['late'][50]:.2f} s late (p50), {told['late'][99]:.1f} s (p99)")
    for name, value in told["fairness"].items():
        print(f"    {value:10.3f} {name}")
    print(f"{time.process_time() - began:,.0f} s of processor time")
    if options.json:
        Path(options.json).write_bytes(msgspec.json.encode(found))
    if options.svg:
        Path(options.svg).write_text(drawing(json.loads(msgspec.json.encode(found))))
    wrong = [name for name in _WRONG if told["counts"][name]]
    return 1 if wrong or told["ended"] != told["runs"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof.simulation", description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=1_000_000, help="a fifth ready, others timers")
    parser.add_argument("--spread", type=float, default=1200.0, help="seconds of the timers")
    parser.add_argument("--processors", type=int, default=8, help="of the database")
    parser.add_argument("--short", action="store_true", help="fewer sizes")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--svg", metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
