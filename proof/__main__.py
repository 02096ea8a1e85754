"""`python -m proof [NAME ...]`: try all that is promised, or what is named, and print the table.

The exit status is 1 if anything failed. The full figures take hours; ``--most`` bounds them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from proof.plan import PROOFS

_PEERS = "peers"
_VARIABLES = {
    "kills": "SUREHOLD_KILLS",
    "cuts": "SUREHOLD_CUTS",
    "pauses": "SUREHOLD_PAUSES",
    "trials": "SUREHOLD_TRIALS",
    "interrupts": "SUREHOLD_INTERRUPTS",
    "runs": "SUREHOLD_CHAOS_RUNS",
    "faults": "SUREHOLD_CHAOS_FAULTS",
    "first": "SUREHOLD_FIRST",
}


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.short:
        os.environ.pop("SUREHOLD_FULL", None)
    else:
        os.environ["SUREHOLD_FULL"] = "1"
    if options.most:
        os.environ["SUREHOLD_MOST"] = str(options.most)
    for name, variable in _VARIABLES.items():
        if (count := getattr(options, name)) is not None:
            os.environ[variable] = str(count)
    # The tests read these variables when they are imported, so what imports them comes later.
    from proof.peers import table
    from proof.rows import as_json, passed, show
    from proof.running import run

    names = options.names or [*PROOFS, _PEERS]
    rows = [row for name in names if name in PROOFS for row in run(name)]
    compared = table.compare(options.short, options.most) if _PEERS in names else None
    if options.json:
        print(json.dumps({"proofs": as_json(rows), "peers": compared}, indent=2))
    else:
        if rows:
            show({name: PROOFS[name].promise for name in names if name in PROOFS}, rows)
        if compared is not None:
            table.show(compared)
    ours = compared is None or table.ours_hold(compared)
    return 0 if passed(rows) and ours else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *PROOFS, _PEERS], metavar="NAME")
    parser.add_argument("--short", action="store_true", help="the few tries that the suite makes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--most", type=int, metavar="N", help="try each thing at most N times")
    for name in _VARIABLES:
        said = f"the number of {name}" if name != "first" else "the first seed of the programs"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=said)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
