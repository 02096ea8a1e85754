"""Surehold: agents and workflows that resume after being killed at any moment.

>>> import surehold
>>> with surehold.run("nightly", storage="memory://") as run:
...     for page in ["a", "b"][run.state.get("done", 0):]:
...         _ = run.checkpoint(done=run.state.get("done", 0) + 1)
>>> run.status
'completed'

Names are loaded when they are first used, so that importing Surehold is quick.
"""

from __future__ import annotations

from typing import Any

from surehold.lazy import attach

__version__ = "0.1.0"

_load, __dir__, __all__ = attach(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "State":  # what State.checkpoint() saves through
        _load("CheckpointManager")
    return _load(name)
