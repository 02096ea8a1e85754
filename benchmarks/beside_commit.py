"""A worker's throughput beside an earlier commit's, in turns: `SUREHOLD_BENCH_COMMIT`.

By default that is the commit before runs of one process shared an engine. Each try is a process of
its own on an empty storage. It needs the repository's history, and an otherwise idle machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.report import Line

__all__ = ["measure"]

_COMMIT = os.environ.get("SUREHOLD_BENCH_COMMIT") or "4d14ab9"
_TRIES = 3
_DELAY = 0.002
_HERE = Path(__file__).parents[1]
_CASES = (
    ("sqlite", 8, 0.0, 2.0),
    ("sqlite", 8, _DELAY, 1.0),
    ("postgresql", 8, 0.0, 1.0),
    ("postgresql", 32, 0.0, 1.5),
    ("postgresql", 8, _DELAY, 1.0),
)
"""Medium, threads, seconds that each storage call is delayed by, and the least ratio."""


def measure(directory: Path) -> Iterator[Line]:
    """Take the earlier sources out of the repository, and let both work in turns."""
    from tests.servers import Postgres

    packed = subprocess.run(
        ["git", "archive", _COMMIT, "src"], cwd=_HERE, capture_output=True, check=False
    )
    if packed.returncode:
        yield Line(f"a worker beside that of {_COMMIT}", None, note="that commit is not here")
        return
    older = directory / "older"
    older.mkdir()
    subprocess.run(["tar", "-x", "-C", older], input=packed.stdout, check=True)
    directory.chmod(0o755)
    server = Postgres(directory / "pg").start()
    try:
        for number, (medium, threads, delay, least) in enumerate(_CASES):
            rates: dict[Path, list[float]] = {_HERE: [], older: []}
            for one in range(_TRIES):
                for at, found in rates.items():
                    name = f"case{number}_{one}_{'old' if at == older else 'new'}"
                    url = f"sqlite:///{directory / name}.db"
                    if medium == "postgresql":
                        url = f"{server.url}&schema={name}"
                    found.append(_rate(at / "src", url, threads, delay))
            new, old = median(rates[_HERE]), median(rates[older])
            added = f", {delay * 1e3:g} ms added to each storage call" if delay else ""
            yield Line(
                f"{medium}, a worker of {threads} threads{added}: steps/s / those of {_COMMIT}",
                new / old,
                least,
                at_least=True,
                note=f"{new:.0f}/s and {old:.0f}/s, medians of {_TRIES}",
            )
    finally:
        server.stop()


def _rate(source: Path, url: str, threads: int, delay: float) -> float:
    package = next(path.parent.name for path in source.glob("*/__init__.py"))
    environ = {
        **os.environ,
        "PYTHONPATH": f"{source}{os.pathsep}{_HERE}",
        "BENCH_PACKAGE": package,
        "BENCH_URL": url,
        "BENCH_RUNS": str(threads * 8 if threads < 32 else threads * 4),
        "BENCH_CONCURRENCY": str(threads),
        "BENCH_DELAY": str(delay),
    }
    command = [sys.executable, "-c", "from benchmarks.pace import main; main()"]
    told = subprocess.run(command, cwd=_HERE, env=environ, stdout=subprocess.PIPE, check=True)
    return float(json.loads(told.stdout.splitlines()[-1])["rate"])
