"""Time, random numbers and UUIDs that are the same in every start of a program.

They are so for a program that asks for them in the same order: one thread, or tasks of one loop.
Clocks that measure (`time.monotonic`, timeouts of asyncio) go on; `os.urandom`, `secrets` and
clocks of other libraries, C code and child programs that are not Python are not changed.
"""

from __future__ import annotations

import datetime
import json
import random
import time
import uuid
from typing import Any


def freeze(told: str) -> None:
    """Freeze the sources that *told*, a JSON text, names."""
    sources: dict[str, Any] = json.loads(told)["freeze"]
    if "random" in sources:
        random.seed(sources["random"])
    if "uuid" in sources:
        _freeze_uuid(random.Random(f"uuid {sources['uuid']}"))
    if "time" in sources:
        _freeze_time(float(sources["time"]))


def _freeze_uuid(source: random.Random) -> None:
    def uuid4() -> uuid.UUID:
        """A UUID that is the same in every start."""
        return uuid.UUID(int=source.getrandbits(128), version=4)

    uuid.uuid4 = uuid4


def _freeze_time(start: float) -> None:
    """Let the wall clock stand at *start*; each reading adds a microsecond."""
    read = [0]

    def now() -> float:
        read[0] += 1
        return start + read[0] / 1e6

    def like(real: type) -> type:
        """A metaclass whose classes take the instances of *real* for their own."""

        class Kind(type):
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, real)

            def __subclasscheck__(cls, other: type) -> bool:
                return issubclass(other, real)

        return Kind

    moment: Any = datetime.datetime
    day: Any = datetime.date

    class Frozen(moment, metaclass=like(moment)):  # type: ignore[misc, metaclass]
        """The class `datetime.datetime` with a clock that stands."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return moment.fromtimestamp(now(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return moment.fromtimestamp(now(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return moment.fromtimestamp(now())

    class FrozenDate(day, metaclass=like(day)):  # type: ignore[misc, metaclass]
        """The class `datetime.date` with a clock that stands."""

        @classmethod
        def today(cls) -> Any:
            return moment.fromtimestamp(now()).date()

    for frozen, name in ((Frozen, "datetime"), (FrozenDate, "date")):
        frozen.__name__ = frozen.__qualname__ = name
        setattr(datetime, name, frozen)
    time.time = now
    time.time_ns = lambda: int(now() * 1e9)
