"""The text of a failure, kept beside the state and encrypted where the state is."""

from __future__ import annotations

import logging
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import msgspec

from surehold.engine.hooks import HookManager, redacted, without_secrets

if TYPE_CHECKING:
    from surehold.core.records import Header

logger = logging.getLogger("surehold.checkpoint")

_MOST = 1_000
"""Characters of a failure's text that are kept."""
TO_A_MODEL = 8 * _MOST
"""Characters that are kept where the text is for a model, which may correct its call."""
_TRACE = 4 * _MOST
_FRAMES = 20
"""Innermost frames of the user's code that a traceback keeps."""
_OURS = str(Path(__file__).parents[3])
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
    found = _without_secrets(text, hooks, most)
    return text.partition(":")[0][:most] if found is None else found


def _without_secrets(text: str, hooks: HookManager | None, most: int) -> str | None:
    """The beginning of *text*, redacted; None if redacting it raised."""
    if not text:
        return ""
    text = text[: most + _BEYOND].encode(errors="replace").decode()
    try:
        found: str = without_secrets(redacted(text, hooks))
        return found if len(found) <= most else found[: most - 1] + "…"
    except Exception as problem:  # its message may quote a secret, so only its class is logged
        kind = type(problem).__name__
        logger.warning("the text of a failure is not kept: redacting it raised %s", kind)
        return None


def traceback_text(error: BaseException, hooks: HookManager | None = None) -> str:
    """The frames of user code that *error* came from, innermost last, redacted.

    Lines of source are left out: they may hold secrets that are written there.
    """
    lines = [
        f'File "{one.filename}", line {one.lineno}, in {one.name}'
        for one in extract_tb(error.__traceback__)
        if not one.filename.startswith(_OURS)
    ]
    return _without_secrets("\n".join(lines[-_FRAMES:]), hooks, _TRACE) or ""


def failure_facts(error: BaseException, hooks: HookManager | None) -> dict[str, str]:
    """Text and traceback of *error*, as a checkpoint keeps them beside the state."""
    found = {"error": failure_text(describe(error), hooks)}
    found["traceback"] = traceback_text(error, hooks)
    return {name: text for name, text in found.items() if text}


def failure_here(error: BaseException, most: int = _MOST) -> str:
    """The text of *error* as the journal of the current run keeps it."""
    from surehold.engine.runs.positions import call_context

    context = call_context()
    run = context.run if context is not None else None
    hooks = run.hook_manager if run is not None else None
    return failure_text(describe(error), hooks, most)


def failure_in(header: Header, extra: bytes, part: str = "error") -> str:
    """The failure that a checkpoint keeps beside the state; empty if there was none.

    With the *part* ``traceback``, where it came from.
    """
    if header.status in ("running", "completed"):
        return ""
    told: Any = msgspec.json.decode(extra) if extra else {}
    found = told.get("now", told) if isinstance(told, dict) else {}
    text = found.get(part, "") if isinstance(found, dict) else ""
    return text if isinstance(text, str) else ""
