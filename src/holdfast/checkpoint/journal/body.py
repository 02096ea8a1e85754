"""The body of a checkpoint, as it is read."""

from __future__ import annotations

import msgspec

from holdfast.core.records import Header
from holdfast.errors import DecodeError


class Body(msgspec.Struct, frozen=True):
    """A checkpoint's body: the whole state (in a keyframe), and what changed."""

    state: msgspec.Raw = msgspec.Raw()
    patch: msgspec.Raw = msgspec.Raw()
    form: str = ""
    extra: msgspec.Raw = msgspec.Raw()
    """A runtime's data beside the state: whole in a keyframe, else the additions."""


_read_body = msgspec.json.Decoder(Body).decode


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
