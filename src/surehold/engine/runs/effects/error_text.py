"""The text of a failure, kept beside the state and encrypted where the state is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from surehold.core.records import Header
    from surehold.engine.hooks import HookManager

logger = logging.getLogger("surehold.checkpoint")

_MOST = 1_000
"""Characters of a failure's text that are kept."""
TO_A_MODEL = 8 * _MOST
"""Characters that are kept where the text is for a model, which may correct its call."""
_BEYOND = 9 * _MOST
"""Further characters that are searched for secrets, to find one that is cut off whole."""


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
    """The beginning of *text* without secrets, as a journal keeps it.

    Secrets of a known form are removed, and those that a `RedactionHook` of *hooks* finds. If that
    raises, only the class of the error is kept.

    >>> failure_text("OSError: postgresql://me:hunter2@db/ is away")
    'OSError: postgresql://me:[redacted:url_password]@db/ is away'
    """
    if not text:
        return ""
    from surehold.engine.hooks import RedactionHook, redacted

    text = text[: most + _BEYOND].encode(errors="replace").decode()
    try:
        found: str = RedactionHook().redact(redacted(text, hooks))
        return found if len(found) <= most else found[: most - 1] + "…"
    except Exception as problem:  # its message may quote a secret, so only its class is logged
        kind = type(problem).__name__
        logger.warning("the text of a failure is not kept: redacting it raised %s", kind)
        return text.partition(":")[0][:most]


def failure_here(error: BaseException, most: int = _MOST) -> str:
    """The text of *error* as the journal of the current run keeps it."""
    from surehold.engine.runs.positions import call_context

    context = call_context()
    run = context.run if context is not None else None
    hooks = run.hook_manager if run is not None else None
    return failure_text(describe(error), hooks, most)


def failure_in(header: Header, extra: bytes) -> str:
    """The failure that a checkpoint keeps beside the state; empty if there was none."""
    if header.status in ("running", "completed"):
        return ""
    told: Any = msgspec.json.decode(extra) if extra else {}
    found = told.get("now", told) if isinstance(told, dict) else {}
    text = found.get("error", "") if isinstance(found, dict) else ""
    return text if isinstance(text, str) else ""
