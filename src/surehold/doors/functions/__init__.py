"""Durable functions: workflows whose recorded calls are their progress.

Holds workflows, steps, and the recorded clock, chance and waits. What an effect is belongs to
`engine.runs.effects`; graphs, agents and fleets have rooms of their own.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
