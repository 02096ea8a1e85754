"""Headers of notes and bodies of records in fewer bytes, exactly restored.

A note's header is stored as the byte 1, its time, id, `prev` and `body` in binary, and the rest of
its text with `WORDS` as bytes; run and seq are columns. A short body is stored as the byte 2, its
size in two bytes, and a zstd frame without its first four bytes, made with a dictionary. Neither
byte begins anything else that is stored. A restored record is proved by its digest, as any record
is; bytes that cannot be restored are returned unchanged, and the digest refuses them. `header_v1`
and `size_v1` of the schema read the header and the size in SQL.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct
from typing import Any

import msgspec
import zstandard

from surehold.core.records import Header
from surehold.storage.rows import micros

PackBody = Callable[[bytes], bytes]

_HEADER, _BODY = b"\1", b"\2"
_FIXED = Struct("!cq16s16s16s")
"""The byte 1, microseconds since 1970, id, `prev` and `body`."""
WORDS = (
    ',"node":"","kind":"effect","stored":',
    ',"kind":"effect","stored":',
    ',"name":"',
    ',"step":',
    ',"epoch":',
    ',"kind":"',
    ',"metadata":',
)
"""Parts of that text, each stored as the byte of its number from 1 on, which JSON text has not."""
_CODES = [(word.encode(), bytes([number])) for number, word in enumerate(WORDS, 1)]
ID_AT, REST_AT = 10, 58
"""The places of the id and of that text, counted from 1."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = 4096
"""Longer bodies compress well without a dictionary, before they come here."""
_SHORTEST = 24
_MAGIC = b"\x28\xb5\x2f\xfd"
_LEVEL = 3

# What is stored refers to these bytes: another text would be another dictionary, with a byte of
# its own at the beginning.
_DICTIONARY = zstandard.ZstdCompressionDict(
    b'{"patch":[{"op":"replace","path":"/messages/-","value":{"role":"assistant","content":"'
    b'{"state":{"arguments":{}},"patch":[]}{"patch":[{"op":"add","path":"/result","value":null}]}'
    b'"inputs":"","failures":1,"since":"2026-11-","repeat":true,"error":["Error",""],"raised":'
    b'"tokens":1,"dollars":0.0,"model":"","output":1{"id":"","taken":{},"text":"","until":null,'
    b'"event":true,"expired":true,"schema":{"type":"string"}'
    b'{"id":"@1","name":"","key":"0123456789abcdef","args":"0123456789abcdef","policy":"ask",'
    b'"policy":"retry","began":"2026-11-19T12:00:00.000000Z","done":true,"value":{"ok":true},'
    b'"value":"","seconds":0.0000',
    dict_type=zstandard.DICT_TYPE_RAWCONTENT,
)
_compressors: list[Any] = []
_decompressors: list[Any] = []
"""Contexts that no thread uses just now."""


def pack_header(header: Header, text: bytes) -> bytes:
    """The text of a note's header as it is stored.

    That of a checkpoint, and an unusual one, is not packed.
    """
    if header.frame != "note":
        return text
    try:
        id, prev, body = map(_of_hex, (header.id, header.prev, header.body))
    except ValueError:
        return text
    at = micros(header.saved_at)
    begin, end = _around(header.run_id, header.seq, at, id, prev, body)
    if not (text.startswith(begin) and text.endswith(end) and len(begin) + len(end) <= len(text)):
        return text
    rest = text[len(begin) : -len(end)]
    for word, code in _CODES:
        rest = rest.replace(word, code)
    return _FIXED.pack(_HEADER, at, id, prev, body) + rest


def unpack_header(run_id: str, seq: int, stored: Any) -> Any:
    """The text of the header that is stored so for the record *seq* of a run."""
    if not isinstance(stored, bytes) or stored[:1] != _HEADER or len(stored) < _FIXED.size:
        return stored
    try:
        begin, end = _around(run_id, seq, *_FIXED.unpack_from(stored)[1:])
    except OverflowError:  # no such time: the row is damaged
        return stored
    rest = stored[_FIXED.size :]
    for word, code in _CODES:
        rest = rest.replace(code, word)
    return begin + rest + end


def id_bytes(id: str) -> bytes:
    """An id as a packed header has it; empty for one that none has."""
    try:
        return _of_hex(id)
    except ValueError:
        return b""


def id_time(id: bytes) -> int | None:
    """The time of an id that `new_id` made, in microseconds since 1970."""
    return int.from_bytes(id[:6]) * 1000 if id[6:7] and id[6] >> 4 == 7 else None


def as_it_is(body: bytes) -> bytes:
    """A body that is not to be packed."""
    return body


def pack_body(body: bytes) -> bytes:
    """A body as it is stored, smaller if that is possible."""
    if not _SHORTEST <= len(body) <= _LONGEST or body[:1] != b"{":
        return body
    try:
        context = _compressors.pop()
    except IndexError:
        context = zstandard.ZstdCompressor(
            level=_LEVEL,
            dict_data=_DICTIONARY,
            write_content_size=False,
            write_dict_id=False,
        )
    packed: bytes = context.compress(body)
    _compressors.append(context)
    stored = _BODY + len(body).to_bytes(2) + packed[len(_MAGIC) :]
    return stored if len(stored) < len(body) else body


def unpack_body(stored: Any) -> Any:
    """The body that is stored so."""
    if not isinstance(stored, bytes) or stored[:1] != _BODY:
        return stored
    try:
        context = _decompressors.pop()
    except IndexError:
        context = zstandard.ZstdDecompressor(dict_data=_DICTIONARY)
    size = int.from_bytes(stored[1:3])
    try:
        body: bytes = context.decompress(
            _MAGIC + stored[3:], max_output_size=max(size, 1), allow_extra_data=False
        )
    except zstandard.ZstdError:
        return stored
    _decompressors.append(context)
    return body if len(body) == size else stored


def _around(
    run_id: str, seq: int, at: int, id: bytes, prev: bytes, body: bytes
) -> tuple[bytes, bytes]:
    """The beginning and the end of a note's header."""
    name = id.hex()
    uuid = f"{name[:8]}-{name[8:12]}-{name[12:16]}-{name[16:20]}-{name[20:]}"
    moment = (_EPOCH + timedelta(microseconds=at)).isoformat()[:-6]
    begin = f'{seq},"id":"{uuid}","frame":"note","saved_at":"{moment}Z"'
    return _of_run(run_id) + begin.encode(), (
        f',"prev":"{prev.hex()}","body":"{body.hex()}"}}'.encode()
    )


@lru_cache(maxsize=1024)
def _of_run(run_id: str) -> bytes:
    return b'{"run_id":' + msgspec.json.encode(run_id) + b',"seq":'


def _of_hex(text: str) -> bytes:
    """16 bytes that are written as *text*, with or without dashes."""
    data = bytes.fromhex(text.replace("-", ""))
    if len(data) != 16:
        raise ValueError
    return data
