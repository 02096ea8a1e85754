"""Runs other projects' own suites with our integrations in their places.

`python tests/peers/run.py DIRECTORY` fetches LangGraph's source distribution, in the version and
with the hashes that `requirements/peers.txt` pins, unpacks it in DIRECTORY, and runs the tests
that go through its SQLite savers with ours instead. Threads are imported from a real Postgres
server as well, which this environment has and that of our own tests has not.

Agent Framework's source distributions hold no tests. With AGENT_FRAMEWORK set to a checkout of
its repository, and that version installed, its checkpoint tests are run as well.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
PINS = HERE.parents[1] / "requirements" / "peers.txt"


def main(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    status = _run(_source_of("langgraph", directory), "langgraph_slots", ["tests", "-n", "2"])
    bare = ["--noconftest", "-c", os.devnull, "--rootdir", str(HERE)]
    status |= _run(HERE, "no:xdist", [*bare, "postgres_import.py"])
    checkout = os.environ.get("AGENT_FRAMEWORK")
    if checkout is None:
        print("AGENT_FRAMEWORK names no checkout: its tests are not run")
        return status
    for package, tests in (("core", "tests/workflow"), ("orchestrations", "tests")):
        root = Path(checkout, "python", "packages", package)
        status |= _run(root, "agent_framework_slot", [tests])
    return status


def _source_of(package: str, directory: Path) -> Path:
    """The unpacked source distribution of a pinned package."""
    pin = re.search(rf"^{package}==(\S+)(?: \\\n +--hash=\S+)+", PINS.read_text(), re.MULTILINE)
    if pin is None:
        raise SystemExit(f"{PINS} pins no {package}")
    root = directory / f"{package}-{pin[1]}"
    if not root.exists():
        wanted = directory / f"{package}.txt"
        wanted.write_text(pin[0] + "\n")
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        fetch += ["--disable-pip-version-check", "--no-build-isolation", "--no-binary", ":all:"]
        fetch += ["--require-hashes", "-r", str(wanted), "-d", str(directory)]
        subprocess.run(fetch, check=True)
        with tarfile.open(directory / f"{root.name}.tar.gz") as packed:
            packed.extractall(directory, filter="data")
    return root


def _run(root: Path, plugin: str, arguments: list[str]) -> int:
    environment = {**os.environ, "NO_DOCKER": "true", "PYTHONPATH": f"{HERE}{os.pathsep}{root}"}
    command = [sys.executable, "-m", "pytest", "-p", plugin, "-q", "-p", "no:cacheprovider"]
    print(f"{root.name}, with {plugin}", flush=True)
    return subprocess.run([*command, *arguments], cwd=root, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
