"""A long run on each medium, whose records are damaged one by one where they are stored."""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from hashlib import sha256, sha512
from pathlib import Path

import apsw
import psycopg
import redis
from tests.servers import SeaweedFS, postgres, seaweedfs, valkey

from surehold import CheckpointManager, FilesystemStorage, State
from surehold.storage.base import RecordQuery
from surehold.storage.cloud import ObjectStorage
from surehold.storage.objects.log_view import entry_key
from surehold.storage.sqlite.page_checksums import checked_pages

__all__ = ["Stored", "stored_on"]

_PARTS = ("log", "data", "begun", "aside", "copy")
"""What an object store holds of runs, and of their second copies."""


class Stored(ABC):
    """A run of *steps* checkpoints, and what is known of its records."""

    lies_alone = True
    """True if a damaged header is met record by record, without a repair."""

    def __init__(self, medium: str, directory: Path, redundancy: int, steps: int) -> None:
        self.medium, self.directory, self.redundancy = medium, directory, redundancy
        self.ids: list[str] = []
        with CheckpointManager(self.address) as manager:
            state = State.new({"log": []}, run_id="run", name="job")
            for step in range(1, steps + 1):
                text = f"{step} {sha512(b'%d' % step).hexdigest()}"
                state = state.append("log", text).at(step=step)
                self.ids.append(manager.save_checkpoint(state))
            manager.storage.compact()
            self.records = list(manager.storage.read("run"))
            headers = manager.storage.headers(RecordQuery(run_id="run"))
            keys = sorted(header.seq for header in headers if header.frame == "key")
        self.chains = [range(a, b) for a, b in zip(keys, [*keys[1:], steps + 1], strict=True)]
        self.keep()

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the run is."""

    @abstractmethod
    def keep(self) -> None:
        """Remember what is stored, so that it can be put back."""

    @abstractmethod
    def damage(self, seq: int) -> None:
        """Put back what was stored, then flip a bit of a record: in its header or in its body."""

    def lost_with(self, seq: int) -> range:
        """The checkpoints that are built on a record."""
        return range(seq, next(chain.stop for chain in self.chains if seq in chain))

    def log_at(self, manager: CheckpointManager, step: int) -> list[int]:
        """The steps that the state of a checkpoint knows of."""
        loaded = manager.load_checkpoint(self.ids[step - 1])
        assert isinstance(loaded, State)
        return [int(text.split()[0]) for text in loaded["log"]]

    def flipped(self, seq: int) -> tuple[bytes, bytes]:
        """Header and body of a record, a bit of one of them flipped."""
        text, body = self.records[seq - 1].text, self.records[seq - 1].body
        part = bytearray(text if seq % 2 else body)
        part[len(part) // 3] ^= 1 << seq % 7
        return (bytes(part), body) if seq % 2 else (text, bytes(part))


class _OnDisk(Stored):
    """In files of this machine; a bit of the file itself is flipped."""

    def __init__(self, medium: str, directory: Path, redundancy: int, steps: int) -> None:
        self._whole = directory / "whole"
        self._damaged = directory / "damaged"
        self._members: dict[int, tuple[int, int]] = {}
        super().__init__(medium, directory, redundancy, steps)

    @property
    def address(self) -> str:
        scheme, _, codec = self.medium.partition("-")
        place = f"///{self._damaged}/runs.db" if scheme == "sqlite" else f"{self._damaged}/runs"
        compress = f"&compress={codec}" if codec else ""
        return f"{scheme}:{place}?redundancy={self.redundancy}{compress}"

    def keep(self) -> None:
        if self.medium == "sqlite":  # then no bytes are left where a record was before
            db = apsw.Connection(str(self._damaged / "runs.db"), vfs=checked_pages())
            db.execute("VACUUM")
            db.close()
        shutil.copytree(self._damaged, self._whole)
        self._members = dict(self._packed())

    def damage(self, seq: int) -> None:
        shutil.rmtree(self._damaged)
        shutil.copytree(self._whole, self._damaged)
        (path,) = [*self._damaged.glob("runs.db"), *self._damaged.glob("runs/job/*.jsonl*")]
        whole = path.read_bytes()
        for at in self._places(whole, seq):
            data = bytearray(whole)
            data[at] ^= 1 << seq % 8
            path.write_bytes(data)
            if self.medium != "sqlite" or self._is_hit(path, seq):
                return
        raise AssertionError(f"record {seq} was not found in {path}")

    def lost_with(self, seq: int) -> range:
        """The checkpoints that are built on a record, or on one that is packed with it."""
        member = self._members.get(seq)
        packed = [one for one, its in self._members.items() if its == member]
        last = max(packed, default=seq)
        return range(min(packed, default=seq), super().lost_with(last).stop)

    def _places(self, data: bytes, seq: int) -> Iterator[int]:
        record = self.records[seq - 1]
        if self.medium == "file":  # the body stands behind the header
            within = len(record.text) // 3 if seq % 2 else len(record.text) + len(record.body) // 3
            yield data.index(record.text) + within
        elif self.medium == "sqlite":
            part = record.text if seq % 2 else record.body
            # Long ones are spread over pages; the end of a header is like no other.
            for start in reversed(range(0, max(len(part) - 30, 1), 30)):
                piece = re.escape(part[start : start + 30])
                yield from (found.start() for found in re.finditer(piece, data))
        else:
            start, end = self._members[seq]
            yield (start + 2 * end) // 3

    def _is_hit(self, path: Path, seq: int) -> bool:
        """True if SQLite reads something else than the record, its pages not checked."""
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        sql = "SELECT CAST(header AS BLOB), body FROM records JOIN bodies USING (ord) WHERE seq = ?"
        found = db.execute(sql, (seq,)).fetchall()
        db.close()
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        record = self.records[seq - 1]
        return len(found) == 1 and found != [(record.text, record.body)]

    def _packed(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """The beginning and end of the compressed member that holds each record."""
        if self.medium not in ("file-gzip", "file-zstd"):
            return
        with FilesystemStorage(self._whole / "runs") as storage, storage._reading() as root:
            assert root is not None
            journal = storage._files.journal(root, "run")
            assert journal is not None
            for seq, entry in journal.entries.items():
                yield seq, (entry.place.start, entry.place.end)


class _OnServer(Stored):
    """On a server; what it keeps of the run is put back before each record is damaged."""

    @property
    def name(self) -> str:
        return f"records_{sha256(str(self.directory).encode()).hexdigest()[:20]}"

    def damage(self, seq: int) -> None:
        self._put_back()
        self._flip(seq, *self.flipped(seq))

    @abstractmethod
    def _put_back(self) -> None:
        """Make the server hold what it held when `keep` was called."""

    @abstractmethod
    def _flip(self, seq: int, text: bytes, body: bytes) -> None:
        """Put these bytes in the place of a record."""


class _OnPostgres(_OnServer):
    @property
    def address(self) -> str:
        options = f"schema={self.name}&pool=1&redundancy={self.redundancy}"
        return f"{postgres().url}&{options}"

    def keep(self) -> None:
        listed = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY(%s)"
        schemas = [self.name, f"{self.name}_copy"]
        with psycopg.connect(postgres().url, autocommit=True) as db:
            db.execute(f"CREATE SCHEMA {self.name}_kept")
            found = [*db.execute(listed, (schemas,))]
            self._tables = [(f"{a}.{b}", f"{self.name}_kept.{a}_{b}") for a, b in found]
            for table, kept in self._tables:
                db.execute(f"CREATE TABLE {kept} AS TABLE {table}")

    def _put_back(self) -> None:
        with psycopg.connect(postgres().url) as db:
            db.execute(f"TRUNCATE {', '.join(table for table, _ in self._tables)}")
            for table, kept in self._tables:
                db.execute(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE {kept}")

    def _flip(self, seq: int, text: bytes, body: bytes) -> None:
        with psycopg.connect(postgres().url, autocommit=True) as db:
            sql = f"UPDATE {self.name}.records SET header = %s, body = %s WHERE seq = %s"
            assert db.execute(sql, (text, body, seq)).rowcount == 1


class _OnValkey(_OnServer):
    @property
    def address(self) -> str:
        options = f"prefix={self.name}&pool=1&redundancy={self.redundancy}"
        return f"{valkey().url}?{options}"

    @property
    def _server(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=valkey().socket, protocol=2)

    def keep(self) -> None:
        with self._server as server:
            keys = [*server.scan_iter(f"{self.name}*")]
            self._kept = {key: server.dump(key) for key in keys}

    def _put_back(self) -> None:
        with self._server as server, server.pipeline() as pipe:
            for key in server.scan_iter(f"{self.name}*"):
                pipe.delete(key)
            for key, dump in self._kept.items():
                pipe.restore(key, 0, dump)
            pipe.execute()

    def _flip(self, seq: int, text: bytes, body: bytes) -> None:
        run = f"{self.name}:run:{{run}}:"
        digest = self.records[seq - 1].header.digest.encode()
        with self._server as server:
            assert server.hset(f"{run}headers", str(seq), digest + b" " + text) == 0
            assert server.hset(f"{run}bodies", str(seq), body) == 0


class _OnObjects(Stored):
    """In an object store; a bit of the object that a record is read from is flipped."""

    lies_alone = False

    def __init__(self, medium: str, directory: Path, redundancy: int, steps: int) -> None:
        self._name = f"records-{sha256(str(directory).encode()).hexdigest()[:20]}"
        os.environ.update(seaweedfs().environment())
        super().__init__(medium, directory, redundancy, steps)

    @property
    def address(self) -> str:
        return f"s3://{SeaweedFS.bucket}/{self._name}?redundancy={self.redundancy}"

    def keep(self) -> None:
        with self._primary() as storage:
            bucket = storage._bucket
            kept = [one.key for part in _PARTS for one in bucket.each(part)]
            self._objects = {key: bucket.get(key) or b"" for key in kept}
            view = storage._logs.view("run")
            # Of two packs that hold a record, readers take the first.
            packs = view.packs[::-1]
            packed = {row.seq: p.key for p in packs for row in storage._packs.rows_in(p)}
            places = {seq: max(row.pos, view.base) for seq, row in view.rows.items()}
            self._keys = packed | {seq: entry_key("run", pos) for seq, pos in places.items()}
        self._hit = ""

    def damage(self, seq: int) -> None:
        record = self.records[seq - 1]
        with self._primary() as storage:
            bucket = storage._bucket
            there = {one.key: one.size for part in _PARTS for one in bucket.each(part)}
            bucket.delete(there.keys() - self._objects.keys())
            for key, data in self._objects.items():
                if key == self._hit or there.get(key) != len(data):
                    bucket.put(key, data)
            self._hit = self._keys[seq]
            whole, parts = self._objects[self._hit], (record.text, record.body)
            for before, after in zip(parts, self.flipped(seq), strict=True):
                if before != after:
                    assert whole.count(before) == 1
                    bucket.put(self._hit, whole.replace(before, after))

    def _primary(self) -> ObjectStorage:
        return ObjectStorage(f"s3://{SeaweedFS.bucket}/{self._name}")


def stored_on(medium: str, directory: Path, *, redundancy: int, steps: int) -> Stored:
    """Store a run of that many checkpoints on a medium."""
    made = {"postgres": _OnPostgres, "valkey": _OnValkey, "s3": _OnObjects}.get(medium, _OnDisk)
    return made(medium, directory, redundancy, steps)
