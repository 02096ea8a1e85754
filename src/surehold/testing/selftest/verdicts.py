"""PASS, FAIL or SKIP: what a self-test found, and the checks that decide it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec


class Failed(Exception):
    """A promise that was not kept."""


class Skipped(Exception):
    """A check that cannot be made here, and why."""


class PromiseVerdict(msgspec.Struct, frozen=True):
    """A promise, and whether it was kept.

    >>> str(PromiseVerdict("PASS", "two is more than one", "by one"))
    'PASS two is more than one: by one'
    """

    verdict: Literal["PASS", "FAIL", "SKIP"]
    promise: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.verdict} {self.promise}" + (f": {self.detail}" if self.detail else "")


def require(kept: bool, otherwise: str) -> None:
    """Raise `Failed` unless *kept*."""
    if not kept:
        raise Failed(otherwise)


def judge(promise: str, check: Callable[[], str]) -> PromiseVerdict:
    """Run *check*, which returns a detail to show or raises.

    >>> judge("one is more than two", lambda: require(1 > 2, "it is not") or "")
    PromiseVerdict(verdict='FAIL', promise='one is more than two', detail='it is not')
    """
    try:
        return PromiseVerdict("PASS", promise, check())
    except Skipped as skipped:
        return PromiseVerdict("SKIP", promise, str(skipped))
    except Failed as failed:
        return PromiseVerdict("FAIL", promise, str(failed))
    except Exception as error:
        return PromiseVerdict("FAIL", promise, f"{type(error).__name__}: {error}")
