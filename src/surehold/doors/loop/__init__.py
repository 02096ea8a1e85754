"""The first door: your own loop, in a ``with surehold.run(...)`` block."""

from __future__ import annotations

from surehold.doors.loop.definition import Run as Run
from surehold.doors.loop.definition import run as run
