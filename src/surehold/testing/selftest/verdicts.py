"""PASS, FAIL or SKIP, a line each: how the self-tests tell what they found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

_PATIENCE = 60.0


class Failed(Exception):
    """A promise that was not kept."""


class Skipped(Exception):
    """A check that cannot be made here, and why."""


def require(kept: bool, otherwise: str) -> None:
    """Raise `Failed` unless *kept*."""
    if not kept:
        raise Failed(otherwise)


class Verdicts:
    """Makes checks one after the other and prints what each came to.

    >>> told = Verdicts()
    >>> told.check("two is more than one", lambda: "by one")
    PASS two is more than one: by one
    True
    >>> told.check("one is more than two", lambda: require(1 > 2, "it is not"))
    FAIL one is more than two: it is not
    False
    >>> told.exit_code
    1
    """

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self.skipped = 0

    def check(self, promise: str, check: Callable[[], str | None]) -> bool:
        """Run *check* and report what it returns; True if it succeeded."""
        try:
            detail = check()
        except Skipped as skipped:
            self.skip(promise, str(skipped))
            return False
        except Exception as error:
            said = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            self.fail(promise, said)
            return False
        self.succeed(promise, detail or "")
        return True

    def succeed(self, promise: str, detail: str = "") -> None:
        """A promise was kept."""
        self.passed += 1
        _say("PASS", promise, detail)

    def fail(self, promise: str, detail: str) -> None:
        """A promise was not kept."""
        self.failed += 1
        _say("FAIL", promise, detail)

    def skip(self, promise: str, reason: str) -> None:
        """A promise was not tried."""
        self.skipped += 1
        _say("SKIP", promise, reason)

    @property
    def exit_code(self) -> int:
        """1 if anything failed, else 0."""
        return 1 if self.failed else 0

    def sum_up(self) -> int:
        """Print the counts, and give the exit code."""
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        print(f"{self.passed} passed, {self.failed} failed{skipped}")
        return self.exit_code


def _say(verdict: str, promise: str, detail: str) -> None:
    print(f"{verdict} {promise}: {detail}" if detail else f"{verdict} {promise}", flush=True)


def killed_after(
    module: str, arguments: Sequence[str], address: str, lines: int | None
) -> list[str]:
    """The lines a child process printed until SIGKILL, sent after so many lines.

    It runs *module*, with the storage at *address* as its default: an address may hold a password,
    and arguments can be seen by others. Lines that it had printed when it died count. With None it
    is left to end, and must end well. A child that reads a character before each line is at most
    one line ahead of the signal, however late that comes.
    """
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        env=os.environ | {"SUREHOLD_STORAGE": address},
        text=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        if lines is None:
            child.stdin.close()
        else:
            child.stdin.write("." * (lines + 1))
            child.stdin.flush()
        for line in child.stdout:
            said.append(line.strip())
            if len(said) == lines:
                child.send_signal(signal.SIGKILL)
        code = child.wait(_PATIENCE)
    require(lines is not None or code == 0, f"a child process ended with {code}")
    require(bool(said), f"a child process said nothing, and ended with {code}")
    return said
