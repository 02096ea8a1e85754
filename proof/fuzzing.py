"""Any bytes for the readers: guided by what they reach (atheris), or by chance.

Run as a program, by an interpreter that has atheris, it fuzzes one target and prints what the
fuzzer prints::

    python -m proof.fuzzing TARGET RUNS DIRECTORY
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["NoFuzzerError", "fuzz", "fuzz_by_chance", "fuzzer"]

_ROOT = Path(__file__).parents[1]
_HOME = _ROOT / ".venv-fuzz"
_VERSIONS = ("3.13", "3.12")
"""Of Python: those that there are wheels of atheris for."""
_LONGEST = 4096
_PATIENCE = 10
"""Seconds that one input may take."""
_MEGABYTES = 1024


class NoFuzzerError(Exception):
    """Why there is no interpreter with atheris."""


@cache
def fuzzer() -> str:
    """The interpreter of an environment with atheris, which is made if need be."""
    python = _HOME / "bin" / "python"
    if not _can(str(python), "import atheris, apsw, pytest"):
        base = next(filter(_is_python, _candidates()), None)
        if base is None:
            raise NoFuzzerError(f"atheris needs Python {' or '.join(_VERSIONS)}, and there is none")
        _make(base)
    return str(python)


def _candidates() -> list[str]:
    names = [f"python{version}" for version in _VERSIONS]
    found = [path for name in names if (path := shutil.which(name))]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += [str(path) for v in _VERSIONS for path in sorted(versions.glob(f"{v}*/bin/python"))]
    return [sys.executable, *found]


def _is_python(path: str) -> bool:
    return _can(path, f"import sys; assert '%d.%d' % sys.version_info[:2] in {_VERSIONS}")


def _can(python: str, code: str) -> bool:
    try:
        return (
            subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


def _make(base: str) -> None:
    python = str(_HOME / "bin" / "python")
    requirements = ("--require-hashes", "-r", str(_ROOT / "requirements" / "bench.txt"))
    commands = [
        [base, "-m", "venv", "--clear", str(_HOME)],
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements],
    ]
    if uv := shutil.which("uv"):
        commands = [
            [uv, "venv", "--quiet", "--clear", "--python", base, str(_HOME)],
            [uv, "pip", "install", "--quiet", "--python", python, *requirements],
        ]
    for command in commands:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            said = made.stderr.strip().splitlines()[-1:]
            raise NoFuzzerError(f"its environment could not be made: {' '.join(said)}")


def fuzz(name: str, runs: int, directory: Path) -> tuple[int, str]:
    """How many inputs a target was given, and the error that one of them caused, if any."""
    ran = subprocess.run(
        [fuzzer(), "-m", "proof.fuzzing", name, str(runs), str(directory)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"},
    )
    count = re.search(r"stat::number_of_executed_units:\s+(\d+)", ran.stderr)
    done = int(count[1]) if count else 0
    if ran.returncode == 0 and done:
        return done, ""
    printed = ran.stdout + ran.stderr
    said = re.findall(r"Uncaught Python exception: ===\s+(.*)|ERROR: (.*)", printed)
    return done, next((one or two for one, two in said), printed[-300:])


def fuzz_by_chance(name: str, runs: int) -> int:
    """Give a target so many sound inputs that were damaged by chance; an error is raised."""
    from proof.targets import TARGETS, planted_fault, seeds

    target, sound = TARGETS.get(name, planted_fault), seeds(name)
    chance = random.Random(name)
    for _ in range(runs):
        target(_damaged(chance, sound))
    return runs


def _damaged(chance: random.Random, sound: list[bytes]) -> bytes:
    data = bytearray(chance.choice(sound))
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0 if place < len(data):
                data[place] ^= 1 << chance.randrange(8)
            case 1:
                data[place:place] = chance.randbytes(chance.randint(1, 4))
            case 2:
                del data[place : place + chance.randint(1, 8)]
            case 3:
                other = chance.choice(sound)
                start = chance.randrange(len(other))
                data[place:place] = other[start : start + chance.randint(1, 40)]
            case _:
                data[place:place] = chance.choice(_WORDS)
    return bytes(data[:_LONGEST])


_WORDS = [b'{"$t":"', b'","v":', b"[[", b"]]", b"1e999", b"\\ud800", b"null", b"-", b'"', b"9" * 40]


def _main(name: str, runs: int, directory: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=["surehold"]):
        from proof.targets import TARGETS, planted_fault, seeds
    target: Any = TARGETS.get(name, planted_fault)
    corpus = directory / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds(name)):
        (corpus / str(number)).write_bytes(seed)
    options = [f"-runs={runs}", f"-max_len={_LONGEST}", f"-timeout={_PATIENCE}"]
    options += [f"-rss_limit_mb={_MEGABYTES}", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target)
    atheris.Fuzz()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
