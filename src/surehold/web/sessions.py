"""One-time links, and the signed cookies that they are exchanged for."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from threading import Lock

COOKIE_DAYS = 7
_MOST_LINKS = 32
"""Links that were made and not used; beyond that the oldest stops working."""


class Sessions:
    """Gives out one-time tokens and recognises the cookies they were exchanged for.

    A cookie is signed, not stored: with the same *key* it is valid after a restart.
    """

    def __init__(self, key: bytes, user: str, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._user = user
        self._clock = clock
        self._tokens: dict[str, None] = {}
        self._lock = Lock()

    def new_token(self) -> str:
        """A token that `exchange` takes once."""
        token = secrets.token_urlsafe(24)
        self.admit(token)
        return token

    def admit(self, token: str) -> None:
        """Let `exchange` take *token* once."""
        with self._lock:
            self._tokens[token] = None
            while len(self._tokens) > _MOST_LINKS:
                del self._tokens[next(iter(self._tokens))]

    def exchange(self, token: str) -> str | None:
        """The cookie for a token that was not used before; None for any other."""
        with self._lock:
            known = next((t for t in self._tokens if _same(t, token)), None)
            if known is None:
                return None
            del self._tokens[known]
        said = f"{int(self._clock()) + COOKIE_DAYS * 86_400}.{secrets.token_hex(8)}"
        return f"{said}.{_sign(self._key, 'cookie', said)}"

    def user_of(self, cookie: str) -> str | None:
        """The person whom a cookie admits; None if it is forged or expired."""
        said, _, signature = cookie.rpartition(".")
        expiry, _, _ = said.partition(".")
        if not _same(signature, _sign(self._key, "cookie", said)) or not expiry.isdecimal():
            return None
        return self._user if int(expiry) > self._clock() else None


def form_token(key: bytes, session: str) -> str:
    """The token that every form of a session carries, against forged requests."""
    return _sign(key, "form", session)


def _sign(key: bytes, purpose: str, text: str) -> str:
    return hmac.new(key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def _same(one: str, two: str) -> bool:
    return hmac.compare_digest(one.encode(), two.encode())
