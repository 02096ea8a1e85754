"""The body of a checkpoint, as it is read."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from surehold.core.records import Header
from surehold.core.values import Written, note_change, operations
from surehold.errors import DecodeError


class Body(msgspec.Struct, frozen=True):
    """A checkpoint's body: the whole state (in a keyframe), and what changed."""

    state: msgspec.Raw = msgspec.Raw()
    patch: msgspec.Raw = msgspec.Raw()
    form: str = ""
    extra: msgspec.Raw = msgspec.Raw()
    """Data of the door beside the state: whole in a keyframe, else the additions."""
    written: msgspec.Raw = msgspec.Raw()
    """A keyframe's `Written`, as of the record that its patch changes."""


_read_body = msgspec.json.Decoder(Body).decode
_read_written = msgspec.json.Decoder(Written).decode


def read_written(body: Body) -> Written:
    """The `Written` of a keyframe; empty if missing or not readable."""
    try:
        return _read_written(body.written) if body.written else {}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def keyframe_changes(body: Body, keys: Iterable[str]) -> dict[str, bool]:
    """The keys that a keyframe changed, as of `Rebuilt.apply`; the first changed all."""
    steps = operations(body.patch) if body.patch else []
    if not steps and not body.written:
        return dict.fromkeys(keys, False)
    changed: dict[str, bool] = {}
    for step in steps:
        note_change(changed, step, keys)
    return changed


def read_body(text: bytes, header: Header) -> Body:
    """The body that *text* holds, or a `DecodeError` that names its record."""
    try:
        return _read_body(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(
            f"the body of record {header.seq} of run {header.run_id!r} cannot be read",
            run_id=header.run_id,
            seq=header.seq,
        ) from error
