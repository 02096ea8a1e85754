"""Acknowledgements that an append waits for after the server's own answer."""

from __future__ import annotations

from typing import Any

import msgspec


class Acknowledgements(msgspec.Struct, frozen=True):
    """The acknowledgements that an append waits for, after the server's own answer."""

    disk: bool = False
    replicas: int = 0

    def command(self, seconds: float) -> tuple[str | int, ...] | None:
        """The command that waits for them, None if there is nothing to wait for."""
        limit = max(1, int(seconds * 1000))
        if self.disk:
            return "WAITAOF", 1, self.replicas, limit
        return ("WAIT", self.replicas, limit) if self.replicas else None

    def is_met(self, answer: Any) -> bool:
        """True if the answer to that command tells of all acknowledgements."""
        if self.disk:
            return int(answer[0]) >= 1 and int(answer[1]) >= self.replicas
        return int(answer) >= self.replicas
