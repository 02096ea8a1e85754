"""What a run failed with, as text: kept beside the state, and so encrypted where that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from holdfast.checkpoint.hooks import HookManager
    from holdfast.core.record import Header

__all__ = ["describe", "failure_in", "failure_text"]

_MOST = 1_000
"""Characters of a failure's text that are kept."""
_SEARCHED = 10 * _MOST
"""So many are searched for secrets: one that begins among those kept is found whole."""


def describe(error: BaseException) -> str:
    """Class and text of an error."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # it is the user's class, and must not hide that it was raised
        return kind
    return f"{kind}: {text}" if text else kind


def failure_text(text: str, hooks: HookManager | None = None) -> str:
    """What `describe` told, as a journal keeps it: its beginning, without secrets.

    Those of a known form are taken out, and those that a `RedactionHook` of *hooks* finds.

    >>> failure_text("OSError: postgresql://me:hunter2@db/ is away")
    'OSError: postgresql://me:[redacted:url_password]@db/ is away'
    """
    if not text:
        return ""
    from holdfast.checkpoint.ready_hooks import RedactionHook

    text = text[:_SEARCHED].encode(errors="replace").decode()
    own = [hook for hook in hooks.hooks if isinstance(hook, RedactionHook)] if hooks else []
    for hook in (*own, RedactionHook()):
        text = hook.redact(text)
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"


def failure_in(header: Header, extra: bytes) -> str:
    """What the run of a checkpoint had failed with, told by what its record keeps beside the
    state; empty if it had not failed."""
    if header.status in ("running", "completed"):
        return ""
    told: Any = msgspec.json.decode(extra) if extra else {}
    found = told.get("now", told) if isinstance(told, dict) else {}
    text = found.get("error", "") if isinstance(found, dict) else ""
    return text if isinstance(text, str) else ""
