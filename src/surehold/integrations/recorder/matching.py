"""Divergences explained: the nearest recorded request, and where the two differ."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from surehold.integrations.recorder.calls import RecordedCall, label
from surehold.integrations.recorder.inside import differing_kinds

_MOST = 8
_WIDTH = 160
_LOOKED_AT = 200
_ADVICE = {
    "time": "a time: --freeze time, or --loose",
    "id": "an id that is made anew: --freeze uuid, or --loose",
    "address": "the address of an object: --loose",
    "temporary file": "the name of a temporary file: --loose",
}


class Difference(msgspec.Struct, frozen=True):
    """One place where two requests differ; None for what one of them lacks."""

    path: str
    recorded: Any
    now: Any


def differences(recorded: Any, now: Any, path: str = "") -> list[Difference]:
    """The places where two JSON values differ.

    >>> [(d.path, d.recorded, d.now) for d in differences({"a": [1, 2]}, {"a": [1, 3], "b": 0})]
    [('a[1]', 2, 3), ('b', None, 0)]
    """
    if isinstance(recorded, dict) and isinstance(now, dict):
        found: list[Difference] = []
        for key in {**recorded, **now}:
            inner = f"{path}.{key}" if path else str(key)
            found += differences(recorded.get(key), now.get(key), inner)
        return found
    if isinstance(recorded, list) and isinstance(now, list):
        found = []
        for number, (one, other) in enumerate(zip(recorded, now, strict=False)):
            found += differences(one, other, f"{path}[{number}]")
        longer = recorded if len(recorded) > len(now) else now
        for number in range(min(len(recorded), len(now)), len(longer)):
            item = longer[number]
            pair = (item, None) if longer is recorded else (None, item)
            found.append(Difference(f"{path}[{number}]", *pair))
        return found
    same = type(recorded) is type(now) and recorded == now
    return [] if same else [Difference(path, recorded, now)]


def nearest(request: Mapping[str, Any], calls: Iterable[RecordedCall]) -> RecordedCall | None:
    """The recorded call that is most like *request*; the earliest of equals."""
    text = _text(request["body"])
    best: tuple[float, RecordedCall] | None = None
    for number, call in enumerate(calls):
        if number >= _LOOKED_AT:
            break
        likeness = 1.0 * (call.request["url"] == request["url"])
        likeness += 0.5 * (call.request["method"] == request["method"])
        matcher = difflib.SequenceMatcher(None, _text(call.request["body"])[:4000], text[:4000])
        likeness += matcher.real_quick_ratio() and matcher.quick_ratio()
        likeness -= 0.01 * len(differences(call.request["body"], request["body"])[:20])
        if best is None or likeness > best[0] + 1e-9:
            best = likeness, call
    return best[1] if best else None


def explain(
    request: Mapping[str, Any],
    model: str,
    left: list[RecordedCall],
    *,
    where: str,
    replayed: int,
    offline: bool = False,
    unanswered: bool = False,
    keeps_state: str = "",
) -> str:
    """The text of a divergence: request, nearest recorded one, likely cause."""
    lines = [f"{where}: the request to {label(request, model)} fits no recorded call"]
    lines[0] += f" ({replayed} replayed, {len(left)} left)"
    if unanswered and offline:
        cause = "it was made when the run was recorded, and had no answer that could be kept"
        return "\n".join([*lines, f"  {cause}: it failed, was refused or was cancelled"])
    close = nearest(request, left)
    if close is None:
        told = "every recorded call was given already" if replayed else "nothing was recorded"
        return "\n".join([*lines, f"  {told}"])
    found = differences(close.request, request)
    lines.append(f"  the nearest recorded call is {close.number} ({close.label}); they differ in")
    for one in found[:_MOST]:
        lines.append(f"    {one.path}")
        lines.append(f"      recorded  {_cut(one.recorded, one.now)}")
        lines.append(f"      now       {_cut(one.now, one.recorded)}")
    if len(found) > _MOST:
        lines.append(f"    and {len(found) - _MOST} more")
    causes = _causes(close, request, found, replayed, keeps_state)
    if not causes and not offline:
        causes = ["--on-divergence live continues with live calls from here"]
    return "\n".join([*lines, *(f"  {cause}" for cause in causes)])


def _causes(
    close: RecordedCall,
    request: Mapping[str, Any],
    found: list[Difference],
    replayed: int,
    keeps_state: str,
) -> list[str]:
    kinds = differing_kinds(_text(close.request), _text(request))
    if kinds:
        return [f"only {_ADVICE[kind]}" for kind in kinds]
    grown = [one for one in found if one.recorded is None and one.path.endswith("]")]
    if not replayed and grown:
        cause = (
            "the first request of this start continues a conversation: the program keeps its own"
        )
        if keeps_state:
            return [f"{cause} state. It resumes by itself with the drop-in for {keeps_state}"]
        return [f"{cause} state, from which it continues. Keep it with a drop-in (docs/how-to)"]
    return []


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _cut(value: Any, other: Any) -> str:
    """*value* around the place where it begins to differ from *other*."""
    if value is None:
        return "(absent)"
    text = _text(value)
    if len(text) <= _WIDTH:
        return text
    beside = _text(other)
    pairs = enumerate(zip(text, beside, strict=False))
    at = next((number for number, (a, b) in pairs if a != b), min(len(text), len(beside)))
    start = max(0, at - _WIDTH // 3)
    cut = text[start : start + _WIDTH]
    return f"{'…' if start else ''}{cut}{'…' if start + _WIDTH < len(text) else ''}"
