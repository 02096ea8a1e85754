"""The price of model calls: tokens, dollars, seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Tokens, dollars and seconds of a model call, or of several added up.

    >>> total = Usage.none() + Usage(10, 5, 0.25) + Usage(1, 1)
    >>> total.calls, total.tokens, total.cost_usd, total.unpriced_calls
    (2, 17, 0.25, 1)
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    """None: the price is unknown."""
    seconds: float = 0.0
    calls: int = 1
    unpriced: int = 0
    """In a sum: calls whose price is unknown."""

    @classmethod
    def none(cls) -> Usage:
        """The sum of no calls."""
        return cls(cost_usd=0.0, calls=0)

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> Usage:
        """Read what `to_dict` gave, or an agent's account of an older form."""
        if "model_calls" not in tree:
            return cls(**{name: tree[name] for name in cls.__dataclass_fields__ if name in tree})
        return cls(
            input_tokens=tree["tokens"],
            cost_usd=tree.get("usd", 0.0),
            seconds=tree["seconds"],
            calls=tree["model_calls"],
            unpriced=tree["unpriced_calls"],
        )

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def unpriced_calls(self) -> int:
        """Calls whose price is unknown."""
        return self.calls if self.cost_usd is None else self.unpriced

    def __add__(self, other: Usage, sign: int = 1) -> Usage:
        return Usage(
            self.input_tokens + sign * other.input_tokens,
            self.output_tokens + sign * other.output_tokens,
            (self.cost_usd or 0.0) + sign * (other.cost_usd or 0.0),
            self.seconds + sign * other.seconds,
            self.calls + sign * other.calls,
            self.unpriced_calls + sign * other.unpriced_calls,
        )

    def __sub__(self, other: Usage) -> Usage:
        return self.__add__(other, -1)

    def to_dict(self) -> dict[str, Any]:
        """The usage as a state keeps it."""
        return asdict(self)
