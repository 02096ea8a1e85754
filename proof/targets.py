"""What is fuzzed: each takes any bytes, and raises only if something is wrong with the reader."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

from tests.engine.transfer.test_hostile_files import (
    MOMENT,
    RUN,
    alter,
    body_of,
    chain,
    write,
)

from surehold import CheckpointManager, State
from surehold.core.records.frame import compress, decompress
from surehold.core.records.record import Header, digest_of, open_record
from surehold.core.values.codec import UnknownTypeWarning, decode, encode
from surehold.core.values.rebuild import Rebuilt
from surehold.engine.journal.body import read_body
from surehold.errors import SureholdError
from surehold.storage.files.lines import (
    Codec,
    CommitLine,
    Fields,
    Part,
    lines_of,
    members,
    pack,
    parse,
)

__all__ = ["TARGETS", "planted_fault", "seeds"]

Target = Callable[[bytes], None]

_LIMIT = 1 << 20
_CODECS: tuple[Codec, ...] = ("", "gzip", "zstd")
_HEADER = Header(run_id=RUN, seq=1, id="a", frame="key", saved_at=MOMENT)


def read_values(data: bytes) -> None:
    """The codec: what can be read can be written, and then comes back the same."""
    try:
        value = decode(data)
        decode(data, frozen=True)
        text = encode(value)
    except SureholdError:
        return
    assert encode(decode(text)) == text


def read_records(data: bytes) -> None:
    """The readers of files, members, lines, headers, bodies and patches."""
    for codec in _CODECS:
        for _, _, text in members(data, codec):
            for line in lines_of(text or b""):
                with suppress(SureholdError):
                    for part in parse(line).parts:
                        part.record()
    head, _, rest = data.partition(b"\n")
    with suppress(SureholdError):
        open_record(head, digest_of(head), rest)
    with suppress(SureholdError):
        body = read_body(decompress(data, limit=_LIMIT), _HEADER)
        Rebuilt(b'{"a":[1]}').apply(bytes(body.patch))


def import_files(data: bytes) -> None:
    """The importer: the bytes as a file, with sound checksums too, and as states of records."""
    for sound in (False, True):
        with _scratch() as path, CheckpointManager("memory://") as manager:
            path.write_bytes(data)
            if sound:
                alter(path, lambda data: None)
            with suppress(SureholdError):
                manager.import_run(path)
    texts = data.split(b"\n", 8)
    with _scratch() as path, CheckpointManager("memory://") as manager:
        try:
            records = chain([body_of(text) for text in texts])
        except SureholdError:
            return
        write(path, records)
        with suppress(SureholdError):
            manager.import_run(path)
            manager.resume_from_latest(RUN)


def planted_fault(data: bytes) -> None:
    """A reader with a fault, for the control."""
    with suppress(SureholdError):
        value = decode(data, strict=True)
        if isinstance(value, list) and len(value) > 1:
            value[0] / 0


def _quietly(target: Target) -> Target:
    """An unknown type is kept with a warning, which is not an error."""

    def quiet(data: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnknownTypeWarning)
            target(data)

    return quiet


TARGETS: dict[str, Target] = {
    "codec": _quietly(read_values),
    "record reader": _quietly(read_records),
    "importer": _quietly(import_files),
}


@contextmanager
def _scratch() -> Iterator[Path]:
    file, name = tempfile.mkstemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    os.close(file)
    path = Path(name)
    try:
        yield path
    finally:
        path.unlink()


def seeds(name: str) -> list[bytes]:
    """Sound bytes to begin with."""
    return {"record reader": _record_seeds, "importer": _file_seeds}.get(name, _value_seeds)()


def _value_seeds() -> list[bytes]:
    zone = timezone(timedelta(hours=2))
    values: list[Any] = [
        *(1 << 80, -1.5, float("nan"), float("-inf"), "text", "\ud800", b"bytes", None, True),
        *((1, "two"), {1, 2}, frozenset("a"), [[]], {}, {1: "one"}, {"$t": "mine"}, 1 + 2j),
        *(Decimal("1.10"), UUID(int=1), PurePosixPath("/a"), timedelta(days=1, microseconds=1)),
        *(datetime(2026, 5, 1, tzinfo=zone), date(2026, 5, 1), time(1, 2, 3, 4)),
    ]
    return [b"{}", b"[1,2]", *map(encode, values), encode({"a": values[-9:]})]


def _record_seeds() -> list[bytes]:
    records = chain([body_of(b'{"a":[1,{"b":"c"}]}'), body_of(b'{"a":"d"}')])
    line = CommitLine(Fields(commit=1, after=0), tuple(Part.of(record) for record in records))
    text = body_of(b'{"a":"%b"}' % (b"b" * 300))
    return [
        *(pack(line, codec) * 2 for codec in _CODECS),
        *(record.text + b"\n" + record.body for record in records),
        b'{"state":{"a":[1]},"patch":[{"op":"add","path":"/a/-","value":2}]}',
        compress(text, "gzip"),
        compress(text, "zstd"),
    ]


def _file_seeds() -> list[bytes]:
    with CheckpointManager("memory://") as manager, _scratch() as path:
        state = State.new({"messages": ["one"]}, run_id=RUN)
        manager.save_checkpoint(state)
        manager.save_checkpoint(state.append("messages", "two").at(step=1))
        manager.export_run(RUN, path, overwrite=True)
        return [path.read_bytes(), b'{"a":1}\n{"a":{"$t":"tuple","v":[1]}}\n{}']
