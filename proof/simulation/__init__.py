"""Workers by the thousand in simulated time: real scheduling code, no network, no clock."""

from __future__ import annotations
