"""Cost of model calls. An unknown price is None, never zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from surehold.core.values import Usage

Prices: TypeAlias = Mapping[str, tuple[float, float]]
"""Dollars for a million input and a million output tokens, by ``model`` or ``provider:model``.

>>> table: Prices = {"ollama:llama3.2": (0.0, 0.0), "gpt-mine": (1.5, 6.0)}
"""

_OWN = ("localhost", "ollama")
"""Servers of one's own: no list has their prices, so none is loaded, which takes a while."""


def cost_of(
    usage: Usage, provider: str, model: str, prices: Prices | None = None, *, base_url: str = ""
) -> float | None:
    """The cost of the tokens of *usage*, by the user's *prices*, else by genai-prices.

    A server that is reached by its *base_url* has the prices of whoever runs it.

    >>> cost_of(Usage(1_000_000, 500_000), "ollama", "mine", {"ollama:mine": (1.0, 2.0)})
    2.0
    >>> cost_of(Usage(10, 10), "ollama", "mine") is None
    True
    """
    own = prices or {}
    price = own.get(f"{provider}:{model}", own.get(model))
    if price is not None:
        return (usage.input_tokens * price[0] + usage.output_tokens * price[1]) / 1e6
    if provider in _OWN:
        return None
    try:
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    except ImportError:
        return None
    tokens = Tokens(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    try:
        if base_url:
            found = calc_price(tokens, model, provider_api_url=base_url)
        else:
            found = calc_price(tokens, model, provider_id=provider)
    except LookupError:
        return None
    return float(found.total_price)


def shown(dollars: float | None) -> str:
    """Format dollars for people.

    >>> shown(0.381), shown(0.0004), shown(None)
    ('$0.38', '$0.0004', 'price unknown')
    """
    if dollars is None:
        return "price unknown"
    return f"${dollars:.2f}" if dollars >= 0.005 or not dollars else f"${dollars:.2g}"
