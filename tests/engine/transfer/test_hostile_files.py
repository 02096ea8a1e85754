"""Files that are not what they say: refused quickly, in little memory, and without a trace."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.crash.media import crossed

from surehold import CheckpointManager, State
from surehold.core.records.frame import compress
from surehold.core.records.record import Header, Record, seal
from surehold.engine.transfer.limits import ImportLimits
from surehold.errors import (
    CorruptError,
    DataError,
    NotFoundError,
    SureholdError,
    WrongKeyError,
)
from surehold.storage.base import RunQuery

MOMENT = datetime(2026, 5, 1, tzinfo=UTC)
KEY = "6b" * 32
RUN = "nightly"


def chain(bodies: Iterable[bytes], **fields: Any) -> list[Record]:
    """A sound journal of keyframes with these bodies."""
    records: list[Record] = []
    for seq, body in enumerate(bodies, 1):
        given = {"run_id": RUN, "id": f"c{seq}", "frame": "key", "saved_at": MOMENT, "step": seq}
        size = len(body) - len(body_of(b"")) if body.startswith(b"{") else 0
        header = Header(**({"size": max(size, 0)} | given | fields), seq=seq)
        records.append(seal(header, body, prev=records[-1].header.digest if records else ""))
    return records


def packed(records: Iterable[Record]) -> bytes:
    parts = []
    for record in records:
        digest = bytes.fromhex(record.header.digest)
        parts.append(struct.pack(">16sII", digest, len(record.text), len(record.body)))
        parts += (record.text, record.body)
    return b"".join(parts)


def section(plain: bytes, *, said: int | None = None) -> bytes:
    data = zstandard.ZstdCompressor(level=3).compress(plain)
    return struct.pack(">BII", 1, len(data), len(plain) if said is None else said) + data


def write(path: Path, journal: list[Record], sections: bytes | None = None, **said: Any) -> Path:
    """A file of these records, or of other sections; its manifest says what it is told to."""
    plain = packed(journal)
    manifest = {
        "run_id": RUN,
        "name": "",
        "records": len(journal),
        "checkpoints": sum(record.header.frame != "note" for record in journal),
        "bytes": len(plain),
        "first": journal[0].header.seq if journal else 1,
        "last": journal[-1].header.seq if journal else 1,
        "head": journal[-1].header.digest if journal else "",
        "exported_at": MOMENT.isoformat(),
    } | said
    data = b"surehold-run 1\n" + json.dumps(manifest).encode() + b"\n"
    data += section(plain) if sections is None else sections
    data += struct.pack(">BII", 255, 0, 0)
    path.write_bytes(data + b"sha256 " + hashlib.sha256(data).hexdigest().encode() + b"\n")
    return path


def body_of(state: bytes) -> bytes:
    return b'{"state":%b,"patch":[]}' % state


# Each makes a file under a path, and gives what its refusal says.


def bomb(path: Path) -> str:
    """200 MiB of nothing in a few kB."""
    zeros = section(bytes(8 << 20))
    assert 1000 * len(zeros) < 8 << 20
    write(path, [], zeros * 25, records=200, bytes=200 << 20)
    return "times its size"


def bomb_that_lies_about_its_size(path: Path) -> str:
    write(path, [], section(bytes(64 << 20), said=1 << 20), records=1, bytes=1 << 20)
    return "cannot be unpacked"


def bomb_in_a_body(path: Path) -> str:
    text = body_of(b'{"a":"%b"}' % (b"a" * (60 << 20)))
    body = compress(text, "zstd")
    assert len(text) > 1000 * len(body)
    write(path, chain([body]))
    return "times its size"


def bombs_in_many_bodies(path: Path) -> str:
    """Each a little below a MiB, which one alone may be."""
    body = compress(body_of(b'{"a":"%b"}' % (b"a" * 1_000_000)), "zstd")
    write(path, chain([body] * 400))
    return "times its size"


def gzip_bomb_in_a_body(path: Path) -> str:
    body = compress(body_of(b'{"a":"%b"}' % (b"a" * (60 << 20))), "gzip")
    write(path, chain([body]))
    return "unpacks to"


def million_records(path: Path) -> str:
    plain = packed(chain([body_of(b"{}")])) * 1_000_000
    write(path, [], section(plain[: 32 << 20]), records=1_000_000, bytes=len(plain))
    return "1,000,000 records"


def million_records_that_are_not_told_of(path: Path) -> str:
    one = packed(chain([body_of(b"{}")]))
    some = one * (1_000_000 // len(one))
    total = len(some) * 200
    write(path, [], section(some) * 200, records=10, bytes=total)
    return "more records than|times its size"


def deep_state(path: Path) -> str:
    deep = b'{"a":%b%b}' % (b"[" * 100_000, b"]" * 100_000)
    write(path, chain([body_of(deep)]))
    return "nested deeper"


def deep_compressed_state(path: Path) -> str:
    deep = b'{"a":%b%b}' % (b'{"a":' * 100_000, b"1" + b"}" * 100_000)
    write(path, chain([compress(body_of(deep), "zstd")]))
    return "nested deeper|times its size"


def deep_header(path: Path) -> str:
    record = chain([body_of(b"{}")])[0]
    deep = b"[" * 100_000 + b"]" * 100_000
    text = record.text[:-1] + b',"metadata":{"a":%b}}' % deep
    digest = hashlib.sha256(text).hexdigest()[:32]
    plain = struct.pack(">16sII", bytes.fromhex(digest), len(text), len(record.body))
    plain += text + record.body
    write(path, [record], section(plain), bytes=len(plain), head=digest)
    return "nested deeper|times its size"


def deep_manifest(path: Path) -> str:
    write(path, chain([body_of(b"{}")]), extra={"a": 1})
    data = path.read_bytes().replace(b'{"a": 1}', b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
    path.write_bytes(data)
    return "manifest"


def deep_patch(path: Path) -> str:
    key, _ = chain([body_of(b'{"a":[]}'), b""])
    deep = b"[" * 100_000 + b"]" * 100_000
    body = b'{"patch":[{"op":"add","path":"/a/-","value":%b}]}' % deep
    fields = {"run_id": RUN, "id": "c2", "saved_at": MOMENT}
    header = Header(**fields, frame="delta", seq=2, base_seq=1, key_seq=1)
    write(path, [key, seal(header, body, prev=key.header.digest)])
    return "nested deeper|times its size"


def symlink(path: Path) -> str:
    write(path.with_suffix(".real"), chain([body_of(b"{}")]))
    path.symlink_to(path.with_suffix(".real"))
    return "symbolic link"


def absolute_path(path: Path) -> str:
    write(path, chain([body_of(b"{}")], run_id="/etc/cron.d/x"), run_id="/etc/cron.d/x")
    return "a path for a run_id"


def path_that_climbs(path: Path) -> str:
    write(path, chain([body_of(b"{}")], name="../../x"), name="../../x")
    return "a path for a name"


def path_in_a_record(path: Path) -> str:
    write(path, chain([body_of(b"{}")], name="/etc/passwd"))
    return "a path for a name"


def truncated(path: Path) -> str:
    states = (body_of(b'{"a":"%d"}' % n + b" " * 5000) for n in range(2000))
    data = write(path, chain(states)).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return "cut short"


def truncated_inside(path: Path) -> str:
    """The middle is missing, and the end is there."""
    data = write(path, chain([body_of(b'{"a":%d}' % n) for n in range(2000)])).read_bytes()
    path.write_bytes(data[: len(data) // 2] + data[-72:])
    return "goes beyond|checksum|cannot be unpacked"


def branches_without_end(path: Path) -> str:
    """Thousands of deltas, and thousands of branches that begin at the last of them."""
    records = chain([body_of(b'{"a":[]}')])
    patch = b'{"patch":[{"op":"add","path":"/a/-","value":1}]}'
    for seq in range(2, 8000):
        base = seq - 1 if seq < 4000 else 3999
        header = Header(
            run_id=RUN,
            id=f"c{seq}",
            saved_at=MOMENT,
            frame="delta",
            seq=seq,
            base_seq=base,
            key_seq=1,
        )
        records.append(seal(header, patch, prev=records[-1].header.digest))
    write(path, records)
    return "more work|times its size"


HOSTILE: list[Callable[[Path], str]] = [
    bomb,
    bomb_that_lies_about_its_size,
    bomb_in_a_body,
    bombs_in_many_bodies,
    gzip_bomb_in_a_body,
    million_records,
    million_records_that_are_not_told_of,
    deep_state,
    deep_compressed_state,
    deep_header,
    deep_manifest,
    deep_patch,
    symlink,
    absolute_path,
    path_that_climbs,
    path_in_a_record,
    truncated,
    truncated_inside,
]

CHILD = """
import json, pathlib, sys, time
from surehold import CheckpointManager
from surehold.errors import SureholdError
from surehold.storage.base import RunQuery

with CheckpointManager(sys.argv[1]) as manager:
    list(manager.storage.runs(RunQuery()))
    began = time.process_time()
    try:
        manager.import_run(pathlib.Path(sys.argv[2]))
        error = None
    except SureholdError as refused:
        error = refused
    seconds = time.process_time() - began
    runs = len(list(manager.storage.runs(RunQuery())))
for line in open("/proc/self/status"):
    if line.startswith("VmHWM:"):
        kilobytes = int(line.split()[1])
told = {"kind": type(error).__name__, "text": str(error), "seconds": seconds}
print(json.dumps({**told, "mebibytes": kilobytes / 1024, "runs": runs}))
"""


@pytest.mark.parametrize(
    ("hostile", "address"),
    crossed(HOSTILE, ("sqlite:///{}/runs.db", "file://{}/runs")),
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_hostile_file_is_refused_within_a_second_and_128_mib_without_a_trace(
    hostile: Callable[[Path], str], address: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    folder, home = tmp_path / "files", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    path = folder / "hostile.surehold"
    says = hostile(path)
    files = sorted(os.listdir(folder))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, address.format(home), str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    told = json.loads(done.stdout)
    cost = {"seconds": told["seconds"], "mebibytes": told["mebibytes"]}
    what = f"a bomb or a hostile file, {address.partition(':')[0]}"
    finding(what, 1, "refused, in {seconds:.2f} s and {mebibytes:.0f} MiB at most", **cost)
    assert told["kind"] in ("CorruptError", "DataError")
    assert any(part in told["text"] for part in says.split("|")), told["text"]
    assert told["seconds"] < 1
    assert told["mebibytes"] < 128
    assert told["runs"] == 0
    assert sorted(os.listdir(folder)) == files
    left = {str(one.relative_to(home)) for one in home.rglob("*")}
    assert not any(RUN in name or "hostile" in name for name in left)


@pytest.fixture
def manager() -> Iterable[CheckpointManager]:
    with CheckpointManager("memory://") as opened:
        yield opened


def runs(manager: CheckpointManager) -> int:
    return len(list(manager.storage.runs(RunQuery())))


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_no_byte_of_a_file_can_be_changed_unnoticed(key: str | None, tmp_path: Path) -> None:
    with (
        CheckpointManager("memory://", encryption_key=key) as source,
        CheckpointManager("memory://", encryption_key=key) as target,
    ):
        state = State.new({"messages": ["one"]}, run_id=RUN)
        source.save_checkpoint(state)
        source.save_checkpoint(state.append("messages", "two").at(step=1))
        path = tmp_path / "a.surehold"
        source.export_run(RUN, path)
        data = path.read_bytes()
        for place in range(len(data)):
            path.write_bytes(data[:place] + bytes([data[place] ^ 0x04]) + data[place + 1 :])
            with pytest.raises((DataError, WrongKeyError)):
                target.import_run(path)
        for length in range(0, len(data), 7):
            path.write_bytes(data[:length])
            with pytest.raises(DataError):
                target.import_run(path)
        assert runs(target) == 0
        path.write_bytes(data)
        target.import_run(path)
        assert target.resume_from_latest(RUN)["messages"] == ["one", "two"]


def test_no_byte_can_be_changed_by_one_who_knows_the_checksums_either(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    """Whatever is in a record, the answer is a run that loads or an error of ours."""
    records = chain([body_of(b'{"a":[1,{"b":"c"}]}'), body_of(b'{"a":"d"}')])
    imported = 0
    for number, record in enumerate(records):
        for place in range(len(record.text)):
            for flip in (0x01, 0x10):
                text = bytearray(record.text)
                text[place] ^= flip
                parts = [
                    (bytes(text), record.body) if n == number else (r.text, r.body)
                    for n, r in enumerate(records)
                ]
                digests = [hashlib.sha256(text).digest()[:16] for text, _ in parts]
                plain = b"".join(
                    struct.pack(">16sII", digest, len(text), len(body)) + text + body
                    for digest, (text, body) in zip(digests, parts, strict=True)
                )
                path = write(
                    tmp_path / "a",
                    records,
                    section(plain),
                    bytes=len(plain),
                    head=digests[-1].hex(),
                )
                try:
                    run_id = manager.import_run(path, f"run{imported}")
                except SureholdError:
                    continue
                imported += 1
                manager.resume_from_latest(run_id)
                assert not manager.verify(run_id)[0].problems
    assert imported


@pytest.mark.parametrize(
    "patch",
    [
        b'[{"op":"add","path":"/a/-"}]',
        b'[{"op":"move","path":"/a","value":1}]',
        b'[{"op":"add","path":"/a/b/c","value":1}]',
        b'[{"op":"remove","path":"/nothing"}]',
        b'[{"op":"replace","path":"/a/99","value":1}]',
        b'[{"op":"add","path":"/t/0","value":1}]',
        b'{"op":"add"}',
        b"[1]",
    ],
)
def test_a_delta_that_does_not_fit_is_refused(
    manager: CheckpointManager, tmp_path: Path, patch: bytes
) -> None:
    key = chain([body_of(b'{"a":[1],"t":"text"}')])[0]
    header = Header(
        run_id=RUN, id="c2", saved_at=MOMENT, frame="delta", seq=2, base_seq=1, key_seq=1
    )
    delta = seal(header, b'{"patch":%b}' % patch, prev=key.header.digest)
    with pytest.raises(CorruptError, match="record 2"):
        manager.import_run(write(tmp_path / "a", [key, delta]))
    assert runs(manager) == 0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"saved_at": datetime(2026, 5, 1)}, "sealed|seals"),
        ({"step": 1 << 60}, "number"),
        ({"id": ""}, "id is empty"),
        ({"id": "a\0b"}, "NUL"),
        ({"frame": "delta"}, "without a base"),
        ({"frame": "delta", "base_seq": 7, "key_seq": 7}, "without a base"),
        ({"frame": "note", "kind": "prune"}, "note"),
        ({"frame": "note", "kind": "key"}, "encrypted|note"),
        ({"frame": "note", "kind": "pin", "metadata": {"target": "x"}}, "note"),
    ],
)
def test_a_record_that_no_writer_writes_is_refused(
    manager: CheckpointManager, tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    path = write(tmp_path / "a", chain([body_of(b"{}")], **fields))
    with pytest.raises(CorruptError) as caught:
        manager.import_run(path)
    assert any(part in str(caught.value) for part in says.split("|")), str(caught.value)
    assert runs(manager) == 0


def test_records_that_are_missing_must_be_accounted_for(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    records = chain([body_of(b'{"n":%d}' % n) for n in range(4)])
    with pytest.raises(CorruptError, match="records 2 to 3"):
        manager.import_run(write(tmp_path / "a", [records[0], records[3]]))
    with pytest.raises(CorruptError, match="out of order"):
        manager.import_run(write(tmp_path / "a", [records[0], records[2], records[1]]))
    with pytest.raises(CorruptError, match="does not follow"):
        other = chain([body_of(b'{"x":1}')] * 2)
        manager.import_run(write(tmp_path / "a", [records[0], other[1]]))
    assert runs(manager) == 0


@pytest.mark.parametrize(
    "said",
    [
        {"records": 1},
        {"records": 3},
        {"bytes": 10},
        {"bytes": 10_000},
        {"first": 2},
        {"last": 1},
        {"head": "0" * 32},
        {"checkpoints": 1},
        {"run_id": "other"},
        {"encrypted": True},
        {"hidden": [[1, 2_000_000_000]]},
        {"hidden": [[0, 0]]},
        {"records": "many"},
    ],
)
def test_a_manifest_that_lies_is_found_out(
    manager: CheckpointManager, tmp_path: Path, said: dict[str, Any]
) -> None:
    path = write(tmp_path / "a", chain([body_of(b"{}"), body_of(b'{"a":1}')]), **said)
    with pytest.raises(DataError):
        manager.import_run(path)
    assert runs(manager) == 0


def test_what_is_no_file_of_ours_is_refused(manager: CheckpointManager, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("surehold-run of the mill\n" * 10)
    (tmp_path / "newer").write_bytes(b"surehold-run 2\n{}\n")
    with pytest.raises(NotFoundError):
        manager.import_run(tmp_path / "nothing")
    for name in ("fifo", "empty", "text", "newer"):
        with pytest.raises(CorruptError):
            manager.import_run(tmp_path / name)
    with pytest.raises(SureholdError):
        manager.import_run(tmp_path)
    with pytest.raises(SureholdError):
        manager.import_run("/dev/zero")


def test_limits_are_as_wide_as_they_are_told_to_be(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    path = write(tmp_path / "a", chain([body_of(b'{"n":%d}' % n) for n in range(20)]))
    narrow = [
        ImportLimits(records=19),
        ImportLimits(total_bytes=1000),
        ImportLimits(record_bytes=100),
        ImportLimits(depth=1),
    ]
    for limits in narrow:
        with pytest.raises(DataError) as caught:
            manager.import_run(path, limits=limits)
        assert f"ImportLimits({caught.value.limit}=" in caught.value.hint
    assert runs(manager) == 0
    manager.import_run(path, limits=ImportLimits(records=20))
    state = b'{"a":"%b"}' % (b"a" * (4 << 20))
    body = compress(body_of(state), "zstd")
    bomb = write(tmp_path / "b", chain([body], run_id="big", size=len(state)), run_id="big")
    with pytest.raises(DataError):
        manager.import_run(bomb)
    manager.import_run(bomb, limits=ImportLimits(ratio=100_000))
    assert len(manager.resume_from_latest("big")["a"]) == 4 << 20


def test_branches_are_followed_but_not_without_end(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    branches_without_end(path)
    limits = ImportLimits(ratio=100_000)
    with pytest.raises(DataError, match="more work"):
        manager.import_run(path, limits=limits)
    assert runs(manager) == 0
