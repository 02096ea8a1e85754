"""Reads what the steps told, and judges it."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Line", "Verdict", "judge", "read"]


class Line(NamedTuple):
    """One event: ``call`` of the body, ``begin`` or ``end`` of a step."""

    event: str
    run: int
    number: int
    epoch: int
    attempt: str
    pid: int
    at: float


class Verdict(NamedTuple):
    """What a trial came to; the lists name what must not be."""

    steps: int
    executions: int
    again: list[str]
    """Steps that were called anew after the next one had begun, so that they were acknowledged."""
    late: list[str]
    """Steps that were called after another process had begun one under a newer lease, or begun
    when the worker had not heard of the database for longer than a lease, nor since."""

    @property
    def is_sound(self) -> bool:
        return not self.again and not self.late


def read(path: Path) -> list[Line]:
    """All lines, in their order."""
    return [Line(*json.loads(line)) for line in path.read_bytes().splitlines()]


def judge(lines: Sequence[Line], heard: Mapping[int, Sequence[float]], lease: float) -> Verdict:
    """Judge *lines*; *heard* are the times at which each process had an answer.

    A step counts as begun where its body called it: a process may be stopped between its look at
    the clock and the first line of the step.
    """
    again, late, executions = [], [], 0
    calls: dict[tuple[str, int], int] = {}
    begun: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for place, line in enumerate(lines):
        if line.event == "call":
            calls[line.attempt, line.number] = place
        if line.event != "begin":
            continue
        executions += 1
        called = calls[line.attempt, line.number]
        before = [one for one in begun[line.run] if one[0] < called]
        told = f"run {line.run}, step {line.number}, epoch {line.epoch}, process {line.pid}"
        if any(number > line.number for _, number, _ in before):
            again.append(told)
        at, times = lines[called].at, heard.get(line.pid, ())
        known = bisect_right(times, at)
        silent = at - times[known - 1] if known else 0.0
        renewed = bisect_right(times, line.at) > known
        if any(epoch > line.epoch for _, _, epoch in before):
            late.append(f"{told}: taken over before")
        elif silent > lease and not renewed:
            late.append(f"{told}: the database was silent for {silent:.1f} s")
        begun[line.run].append((place, line.number, line.epoch))
    steps = len({(line.run, line.number) for line in lines if line.event == "begin"})
    return Verdict(steps, executions, again, late)
