"""Model, tokens and cost of a call, read from its response."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from surehold.agents.models import Prices, cost_of
from surehold.core.values import Usage
from surehold.integrations.recorder.inside import HttpAnswer

_INPUT = ("prompt_tokens", "input_tokens", "promptTokenCount", "inputTokens", "prompt_eval_count")
_OUTPUT = (
    "completion_tokens",
    "output_tokens",
    "candidatesTokenCount",
    "outputTokens",
    "eval_count",
)
_CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")


def body_text(answer: HttpAnswer) -> str:
    """The body as text, decompressed; empty if it is not text."""
    data = b"".join(answer.chunks)
    coding = next((v.lower() for k, v in answer.headers if k.lower() == "content-encoding"), "")
    try:
        if coding == "gzip":
            data = gzip.decompress(data)
        elif coding == "deflate":
            data = zlib.decompress(data)
        elif coding == "zstd":
            import zstandard

            data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        elif coding:
            return ""
        return data.decode()
    except (OSError, EOFError, zlib.error, ValueError):
        return ""


def _documents(text: str) -> Iterator[Any]:
    """The JSON documents of a response: one, or those of its events."""
    try:
        found = json.loads(text)
    except ValueError:
        for line in text.splitlines():
            told = line.removeprefix("data:").strip()
            if told.startswith("{"):
                try:
                    yield json.loads(told)
                except ValueError:
                    continue
        return
    yield from found if isinstance(found, list) else [found]


def read_usage(
    host: str, model: str, answer: HttpAnswer, prices: Prices | None = None
) -> tuple[str, Usage]:
    """The model that answered and what the call used, as the response says.

    >>> told = b'{"model":"m","usage":{"prompt_tokens":7,"completion_tokens":2}}'
    >>> _, used = read_usage("h", "m", HttpAnswer(200, "OK", [], [told]), {"m": (1.0, 1.0)})
    >>> used.tokens, used.cost_usd
    (9, 9e-06)
    """
    tokens = {"in": 0, "out": 0}
    named = ""
    for document in _documents(body_text(answer)):
        if not isinstance(document, dict):
            continue
        inner = [document, document.get("message"), document.get("response")]
        for part in (one for one in inner if isinstance(one, dict)):
            told = part.get("model") or part.get("modelVersion")
            named = told if isinstance(told, str) else named
            used = part.get("usage") or part.get("usageMetadata") or part
            if isinstance(used, dict):
                _take(tokens, used)
    model = named or model
    usage = Usage(tokens["in"], tokens["out"], seconds=answer.seconds)
    if not usage.tokens:
        return model, Usage(cost_usd=0.0, seconds=answer.seconds)
    cost = cost_of(usage, _provider(host), model, prices)
    return model, Usage(tokens["in"], tokens["out"], cost, answer.seconds)


def _take(tokens: dict[str, int], used: Mapping[str, Any]) -> None:
    for kind, names in (("in", _INPUT), ("out", _OUTPUT)):
        found = [used[name] for name in names if type(used.get(name)) is int]
        if not found:
            continue
        total = found[0]
        if kind == "in":
            total += sum(used[name] for name in _CACHED if type(used.get(name)) is int)
        tokens[kind] = max(tokens[kind], total)


_PROVIDERS = (
    "openai",
    "anthropic",
    "google",
    "mistral",
    "cohere",
    "groq",
    "deepseek",
    "openrouter",
)


def _provider(host: str) -> str:
    found = next((name for name in _PROVIDERS if name in host), "")
    return "aws" if "amazonaws" in host else found or host
