"""What a run failed with, as text: kept beside the state, and so encrypted where that is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from holdfast.checkpoint.hooks import HookManager
    from holdfast.core.records import Header

__all__ = ["TO_A_MODEL", "describe", "failure_here", "failure_in", "failure_text", "shown"]

logger = logging.getLogger("holdfast.checkpoint")

_MOST = 1_000
"""Characters of a failure's text that are kept."""
TO_A_MODEL = 8 * _MOST
"""So many where the text is for a model, which may mend what it can read."""
_BEYOND = 9 * _MOST
"""So many more are searched for secrets: one that begins among those kept is found whole."""


def describe(error: BaseException) -> str:
    """Class and text of an error."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # it is the user's class, and must not hide that it was raised
        return kind
    return f"{kind}: {text}" if text else kind


def shown(error: BaseException) -> str:
    """An error as `repr` has it or, if its own class fails at that, its class."""
    try:
        return repr(error)
    except Exception:
        return type(error).__name__


def failure_text(text: str, hooks: HookManager | None = None, most: int = _MOST) -> str:
    """What `describe` told, as a journal keeps it: its beginning, without secrets.

    Those of a known form are taken out, and those that a `RedactionHook` of *hooks* finds. If it
    cannot look for them, only the class of the error is kept.

    >>> failure_text("OSError: postgresql://me:hunter2@db/ is away")
    'OSError: postgresql://me:[redacted:url_password]@db/ is away'
    """
    if not text:
        return ""
    from holdfast.checkpoint.hooks import RedactionHook

    text = text[: most + _BEYOND].encode(errors="replace").decode()
    own = [hook for hook in hooks.hooks if isinstance(hook, RedactionHook)] if hooks else []
    found = text
    try:
        for hook in (*own, RedactionHook()):
            found = hook.redact(found)
        return found if len(found) <= most else found[: most - 1] + "…"
    except Exception as problem:  # its message may quote a secret, so only its class is told
        kind = type(problem).__name__
        logger.warning("what a run failed with is not kept: redacting it raised %s", kind)
        return text.partition(":")[0][:most]


def failure_here(error: BaseException, most: int = _MOST) -> str:
    """What the journal of the run that is being executed here keeps of *error*."""
    from holdfast.checkpoint.effects.execution import CURRENT_STEP

    here = CURRENT_STEP.get()
    session = here.session if here is not None else None
    hooks = session.manager.hook_manager if session is not None else None
    return failure_text(describe(error), hooks, most)


def failure_in(header: Header, extra: bytes) -> str:
    """What the run of a checkpoint had failed with, told by what its record keeps beside the
    state; empty if it had not failed."""
    if header.status in ("running", "completed"):
        return ""
    told: Any = msgspec.json.decode(extra) if extra else {}
    found = told.get("now", told) if isinstance(told, dict) else {}
    text = found.get("error", "") if isinstance(found, dict) else ""
    return text if isinstance(text, str) else ""
