"""Keys of calls and questions, which may contain a secret, as their ids have them."""

from __future__ import annotations

from holdfast.checkpoint.hooks import HookManager, redacted
from holdfast.core.records import digest_of


def hide_secrets(key: str | None, hooks: HookManager | None) -> str | None:
    """*key* without the secrets that a `RedactionHook` of *hooks* finds in it.

    A digest of the whole key keeps two such keys apart, and the id the same on every replay.
    """
    if key is None or hooks is None:
        return key
    found = redacted(key, hooks)
    return key if found == key else f"{found}#{digest_of(key.encode())[:12]}"
