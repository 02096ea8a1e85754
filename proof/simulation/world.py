"""Simulated time: every activity is a greenlet that sleeps in it, and the earliest one goes on."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import greenlet

from surehold.engine.leases import Moment

__all__ = ["Activity", "Event", "Node", "World"]

_START = 1_000_000.0
"""The time of day at which a simulation begins."""


class Node:
    """A machine: it can die, stand still for a while, and be cut off from the database."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.stands_until = 0.0
        self.is_cut_off = False


class Activity(greenlet.greenlet):
    """Something that happens on a node, one thing after the other."""

    node: Node


class World:
    """A clock, and what happens at its times."""

    def __init__(self) -> None:
        self.now = _START
        self._heap: list[tuple[float, int, Callable[..., Any], Any]] = []
        self._count = 0
        self._hub = greenlet.getcurrent()
        self._is_over = False
        self._left: list[Activity] = []

    def time(self) -> float:
        """The time of day."""
        return self.now

    def monotonic(self) -> float:
        """The seconds since the simulation began."""
        return self.now - _START

    @contextmanager
    def is_the_clock(self) -> Iterator[None]:
        """Let workers and leases live in this time."""
        with ExitStack() as stack:
            for module in ("surehold.executors.worker", "surehold.engine.leases"):
                stack.enter_context(patch(f"{module}.time", self))
            now = staticmethod(lambda *_: Moment(self.now, self.monotonic()))
            stack.enter_context(patch.object(Moment, "now", now))
            yield

    def call_at(self, when: float, call: Callable[[Any], Any], value: Any = None) -> None:
        """Call a function at a time; it must not sleep."""
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, call, value))

    def spawn(self, node: Node, work: Callable[[], Any]) -> None:
        """Begin an activity, which may sleep."""
        made = Activity(work, self._hub)
        made.node = node
        self.call_at(self.now, self._resume, made)

    def sleep(self, seconds: float) -> None:
        """Let the activity that calls this rest."""
        self.call_at(self.now + seconds, self._resume, greenlet.getcurrent())
        self.rest()

    def rest(self) -> None:
        """Let it rest until it is resumed."""
        if self._is_over:
            raise greenlet.GreenletExit
        self._hub.switch()

    def _resume(self, activity: Activity) -> None:
        node = activity.node
        if node.is_dead:
            self._left.append(activity)  # its code must not notice
        elif node.stands_until > self.now:
            self.call_at(node.stands_until, self._resume, activity)
        else:
            activity.switch()

    def run(self, until: Callable[[], bool]) -> None:
        """Do what happens, in order, until something is so or nothing happens any more."""
        while self._heap and not until():
            self.now, _, call, value = heapq.heappop(self._heap)
            call(value)

    def end(self) -> None:
        """Have every activity that is left break off."""
        self._is_over = True
        for _, _, _, value in self._heap:
            if isinstance(value, Activity):
                self._left.append(value)
            elif isinstance(value, list):
                self._left += value
        for one in self._left:
            if not one.dead:
                one.throw(greenlet.GreenletExit)


class Event:
    """`threading.Event` for activities."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False
        self._waiting: list[list[greenlet.greenlet]] = []

    def is_set(self) -> bool:
        return self._set

    def clear(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._world.call_at(self._world.now, self._wake, one)

    def wait(self, seconds: float) -> bool:
        if not self._set:
            me = [greenlet.getcurrent()]
            self._waiting.append(me)
            self._world.call_at(self._world.now + seconds, self._wake, me)
            self._world.rest()
            if me in self._waiting:
                self._waiting.remove(me)
        return self._set

    def _wake(self, waiting: list[Any]) -> None:
        """Continue an activity once, whichever of news and its time comes first."""
        if waiting:
            self._world._resume(waiting.pop())
