"""Who may call, and what each caller may do."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Self, get_args

from starlette.requests import Request

from surehold.errors import UsageError

Role = Literal["read", "answer", "operate"]
"""``read`` sees runs; ``answer`` also answers them and sends messages; ``operate`` does all."""
ROLES: tuple[Role, ...] = get_args(Role)
_SHORTEST = 16
_HASHED = "sha256:"


class Caller(NamedTuple):
    """Who sends a request. The journal keeps the name beside what was asked for."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """True if the caller has that role, or one above it."""
        return ROLES.index(self.role) >= ROLES.index(role)


CallerOf = Callable[[Request], Caller | None]
"""Tells who sends a request; None refuses it."""


class Tokens:
    """Knows callers by their bearer tokens, of which it keeps only digests."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        """*callers* by their token, or by ``sha256:`` and its digest in hex."""
        self._callers: dict[str, Caller] = {}
        for token, caller in callers.items():
            if caller.role not in ROLES:
                raise UsageError(
                    f"the role of {caller.name} is {caller.role!r}", hint=", ".join(ROLES)
                )
            if not token.startswith(_HASHED) and len(token) < _SHORTEST:
                raise UsageError(
                    f"the token of {caller.name} has {len(token)} characters",
                    hint=f"at least {_SHORTEST}: openssl rand -hex 16",
                )
            known = token.removeprefix(_HASHED) if token.startswith(_HASHED) else _digest(token)
            self._callers[known.lower()] = caller

    @classmethod
    def read(cls, text: str) -> Self:
        """The tokens of a file: in each line a name, a role, and a token or its digest."""
        callers: dict[str, Caller] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 3:
                raise UsageError(
                    f"line {number} of the tokens has {len(words)} words",
                    hint="write NAME ROLE TOKEN, or NAME ROLE sha256:DIGEST",
                )
            name, role, token = words
            callers[token] = Caller(name, role)  # type: ignore[arg-type]
        if not callers:
            raise UsageError("there are no tokens", hint="write NAME ROLE TOKEN in a line")
        return cls(callers)

    @classmethod
    def made_for(cls, name: str) -> tuple[Self, str]:
        """A new token for one caller who may do everything."""
        token = secrets.token_urlsafe(24)
        return cls({token: Caller(name, "operate")}), token

    def __call__(self, request: Request) -> Caller | None:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return self._callers.get(_digest(token.strip())) if kind.lower() == "bearer" else None


def _digest(token: str) -> str:
    """The digest of a token; looking it up takes the same time for any guess."""
    return hashlib.sha256(token.encode()).hexdigest()
