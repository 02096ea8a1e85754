"""Threads that come from LangGraph's own savers, or leave for one.

An import only reads its source. Each checkpoint is saved with its writes in one commit, so an
interrupted import continues where it was. Each thread is then read again on both sides and compared
before it is reported. An export uses only the public interface of the other saver.
"""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from surehold.errors import CorruptError, MissingExtraError, NotFoundError, UsageError
from surehold.integrations.journal_text import Found, joined
from surehold.integrations.langgraph.records import (
    Address,
    beside,
    fold,
    note_of,
    paths_of,
    split_metadata,
)
from surehold.integrations.langgraph.saver import SureholdSaver
from surehold.integrations.langgraph.types import encode_value
from surehold.integrations.type_learning import adopt_named
from surehold.storage.base import RunQuery


class CopiedThread(msgspec.Struct, frozen=True):
    """A thread that was imported and is equal on both sides."""

    thread_id: str
    checkpoints: int
    added: int
    """The number of checkpoints that were new here."""


class _Row(msgspec.Struct):
    """A checkpoint in the source."""

    address: Address
    """Its thread, namespace and id."""
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[tuple[str, str, int, str, Any]]
    """Path, task, place, channel and value of each write."""


class _Source(msgspec.Struct):
    threads: Callable[[], list[str]]
    rows: Callable[[str], Iterator[_Row]]
    """The checkpoints of a thread, oldest first."""


def import_threads(
    kind: Literal["sqlite", "postgres"],
    url: str,
    saver: SureholdSaver,
    *,
    threads: Collection[str] | None = None,
    types: Collection[type] = (),
    serde: SerializerProtocol | None = None,
) -> Iterator[CopiedThread]:
    """Import the threads of the database at *url* into *saver*, one after another.

    *url* is the path of a SQLite file, or the address of a Postgres database. Only *threads* are
    imported, if given. *types* are the classes of your own that their states hold; states
    with any other class, LangGraph's own aside, are refused. *serde* is the serializer that the
    threads were saved with, if it was not LangGraph's own.
    """
    adopt_named(types)
    allowed = [(cls.__module__, *cls.__qualname__.split(".")) for cls in types]
    serde = serde or JsonPlusSerializer(allowed_msgpack_modules=allowed or None)
    with _opened(kind, url, serde) as source:
        for thread_id in source.threads():
            if threads is None or thread_id in threads:
                with _watched() as check:
                    told = _bring(source, thread_id, saver, check)
                yield told


def _bring(
    source: _Source, thread_id: str, saver: SureholdSaver, check: Callable[[], None]
) -> CopiedThread:
    added = total = 0
    for row in source.rows(thread_id):
        check()
        total += 1
        if _found(saver, row.address) is None:
            saver.manager.perform(_put(row, saver))
            added += 1
    for row in source.rows(thread_id):
        _compare(row, _found(saver, row.address), saver)
    return CopiedThread(thread_id, total, added)


def _found(saver: SureholdSaver, address: Address) -> Found | None:
    header = saver.threads.reading.find(address)
    return saver.threads.reading.load(header) if header is not None else None


def _texts(row: _Row) -> dict[str, bytes]:
    return {key: encode_value(part) for key, part in row.checkpoint["channel_values"].items()}


def _put(row: _Row, saver: SureholdSaver) -> Any:
    """Save a checkpoint with its writes."""
    parent = msgspec.structs.replace(row.address, checkpoint_id=row.parent)
    tasks: dict[tuple[str, str], list[tuple[int, str, Any]]] = {}
    for path, task, place, channel, value in row.writes:
        tasks.setdefault((path, task), []).append((place, channel, value))
    notes = []
    for (path, task), writes in tasks.items():
        stored = [(channel, encode_value(value)) for _, channel, value in writes]
        places = [place for place, _, _ in writes]
        notes.append(note_of(row.address, stored, task, path, places))
    checkpoint = {**row.checkpoint, "id": row.address.checkpoint_id}
    return saver.threads.put(parent, checkpoint, _texts(row), row.metadata, notes=tuple(notes))


def _compare(row: _Row, found: Found | None, saver: SureholdSaver) -> None:
    """Raise a `CorruptError` unless the stored checkpoint equals the source."""
    checkpoint_id = row.address.checkpoint_id or ""
    written = [] if found is None else saver.threads.reading.written(found.header, checkpoint_id)
    order = sorted(row.writes, key=lambda write: write[:3])
    wanted = [(task, channel, encode_value(v)) for _, task, _, channel, v in order]
    plain, rest = split_metadata(row.metadata)
    if (
        found is None
        or {key: joined(text) for key, text in found.texts.items()} != _texts(row)
        or found.beside != beside(row.checkpoint, rest)
        or found.header.metadata != plain
        or found.header.parent != row.parent
        or fold(written) != wanted
    ):
        raise CorruptError(
            f"checkpoint {checkpoint_id} of thread {row.address.thread_id!r} differs from"
            " the source",
            hint="delete the thread here and import it again while the source is not in use",
            run_id=row.address.thread_id,
        )


def export_threads(
    saver: SureholdSaver, other: BaseCheckpointSaver[Any], *, threads: Collection[str] | None = None
) -> Iterator[CopiedThread]:
    """Export the threads of *saver* to *other*, one after another.

    Only *threads* are exported, if given. Checkpoints that *other* has already are skipped. Each
    thread is read again there and compared before it is reported.

    *other* is a saver whose blocking methods work, as `SqliteSaver` and `PostgresSaver`. It stores
    what its own serializer makes of the values, so a tuple may be a list there. Recorded effects
    stay behind: finish threads with effects in doubt first.
    """
    runs = [run.run_id for run in saver.manager.storage.runs(RunQuery(name=saver.run_name))]
    for thread_id in sorted(runs if threads is None else {*runs} & {*threads}):
        yield _copy(saver, other, thread_id)


def _copy(saver: SureholdSaver, other: BaseCheckpointSaver[Any], thread_id: str) -> CopiedThread:
    found = [*saver.list({"configurable": {"thread_id": thread_id}})][::-1]
    added = 0
    for one in found:
        there = other.get_tuple(one.config)
        # Writes come first: a checkpoint that is there has them, should the export be interrupted.
        if there is None or _writes(there.pending_writes) != _writes_through(other, one):
            _put_writes_there(saver, other, one)
        if there is None:
            _put_there(other, one)
            added += 1
    for one in found:
        _compare_there(other, one, other.get_tuple(one.config))
    return CopiedThread(thread_id, len(found), added)


def _put_writes_there(
    saver: SureholdSaver, other: BaseCheckpointSaver[Any], one: CheckpointTuple
) -> None:
    address = Address.of(one.config)
    paths = paths_of(saver.threads.reading.written(address, address.checkpoint_id or ""))
    for task, writes in _writes(one.pending_writes).items():
        other.put_writes(one.config, writes, task, paths.get(task, ""))


def _put_there(other: BaseCheckpointSaver[Any], one: CheckpointTuple) -> None:
    config = Address.of(one.config).config()
    config["configurable"]["checkpoint_id"] = _id_of(one.parent_config)
    checkpoint: Any = {**one.checkpoint, "channel_values": _values(one)}
    other.put(config, checkpoint, one.metadata, checkpoint["channel_versions"])


def _id_of(config: Mapping[str, Any] | None) -> str | None:
    return config["configurable"].get("checkpoint_id") if config else None


def _values(one: CheckpointTuple) -> dict[str, Any]:
    return dict(one.checkpoint["channel_values"])


def _compare_there(
    other: BaseCheckpointSaver[Any], one: CheckpointTuple, there: CheckpointTuple | None
) -> None:
    """Raise a `CorruptError` unless the other saver returns what it was given."""
    address = Address.of(one.config)
    if (
        there is None
        or _values(there) != {key: _through(other, value) for key, value in _values(one).items()}
        or there.checkpoint["channel_versions"] != one.checkpoint["channel_versions"]
        or _id_of(there.parent_config) != _id_of(one.parent_config)
        or _writes(there.pending_writes) != _writes_through(other, one)
    ):
        raise CorruptError(
            f"checkpoint {address.checkpoint_id} of thread {address.thread_id!r} differs in"
            f" {type(other).__name__}",
            hint="delete the thread there and export it again while nothing else uses it",
            run_id=address.thread_id,
        )


def _through(other: BaseCheckpointSaver[Any], value: Any) -> Any:
    """The value that the other saver's serializer makes of *value*."""
    return other.serde.loads_typed(other.serde.dumps_typed(value))


def _writes_through(
    other: BaseCheckpointSaver[Any], one: CheckpointTuple
) -> dict[str, list[tuple[str, Any]]]:
    writes = one.pending_writes or ()
    return _writes((task, channel, _through(other, value)) for task, channel, value in writes)


def _writes(writes: Iterable[Any] | None) -> dict[str, list[tuple[str, Any]]]:
    """The writes of each task, whose order among tasks a saver may choose."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in writes or ():
        found.setdefault(task, []).append((channel, value))
    return found


@contextmanager
def _watched() -> Iterator[Callable[[], None]]:
    """Yield a check that raises once the serializer made plain dicts of objects."""
    blocked: set[str] = set()

    def listen(event: Any) -> None:
        if "blocked" in event["kind"]:
            blocked.add(f"{event['module']}.{event['name']}")

    def check() -> None:
        if blocked:
            raise UsageError(
                f"the source holds {', '.join(sorted(blocked))}, which may not be loaded",
                hint="name the classes that are yours in types=",
                blocked=sorted(blocked),
            )

    stop = register_serde_event_listener(listen)
    try:
        yield check
    finally:
        stop()


def _opened(kind: str, url: str, serde: SerializerProtocol) -> AbstractContextManager[_Source]:
    if kind == "sqlite":
        return _sqlite(url, serde)
    if kind == "postgres":
        return _postgres(url, serde)
    raise UsageError(f"there is no source {kind!r}", hint="give 'sqlite' or 'postgres'")


@contextmanager
def _sqlite(url: str, serde: SerializerProtocol) -> Iterator[_Source]:
    path = check_file(url)
    with closing(_connected(path)) as database:
        try:
            columns = [row[1] for row in database.execute("PRAGMA table_info(writes)")]
            writes = _WRITES.format("task_path" if "task_path" in columns else "''")
            yield _Source(
                lambda: [row[0] for row in database.execute(_THREADS)],
                lambda thread_id: _sqlite_rows(database, writes, thread_id, serde),
            )
        except sqlite3.Error as error:
            raise _unreadable(path, error) from error


def check_file(url: str) -> Path:
    """Return the file at *url*; raise if it is not a database of LangGraph's."""
    path = Path(url.removeprefix("sqlite:///")).absolute()
    if not path.exists():
        raise NotFoundError(f"there is no file {path}", hint="check the spelling", path=str(path))
    if path.is_dir():
        raise _refused(path, "it is a directory")
    try:
        with path.open("rb") as file:
            head = file.read(16)
        if not head:
            raise _refused(path, "it is empty")
        if head != b"SQLite format 3\x00":
            raise _refused(path, "it is not a SQLite file")
        with closing(_connected(path)) as database:
            tables = {row[0] for row in database.execute(_TABLES)}
    except (OSError, sqlite3.Error) as error:
        raise _unreadable(path, error) from error
    if tables >= {"runs", "records", "bodies"}:
        raise _refused(
            path,
            "it is a Surehold database",
            hint=f"its runs need no import: surehold -s sqlite:///{path} runs lists them, and"
            " surehold copy copies them",
        )
    if not tables >= {"checkpoints", "writes"}:
        there = ", ".join(sorted(tables)[:5]) or "none"
        raise _refused(path, f"it is a SQLite file with other tables: {there}")
    return path


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)


def _refused(path: Path, what: str, hint: str = "") -> UsageError:
    return UsageError(
        f"{path} is not a database of LangGraph's SqliteSaver: {what}",
        hint=hint or "give the file that SqliteSaver.from_conn_string was given",
        path=str(path),
    )


def _unreadable(path: Path, error: Exception) -> UsageError:
    return UsageError(
        f"{path} cannot be read as a database of LangGraph's SqliteSaver: {error}", path=str(path)
    )


_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"


def _sqlite_rows(
    database: sqlite3.Connection, writes: str, thread_id: str, serde: SerializerProtocol
) -> Iterator[_Row]:
    for ns, id_, parent, tag, blob, metadata in database.execute(_CHECKPOINTS, [thread_id]):
        yield _Row(
            Address(thread_id, ns, id_),
            parent or None,
            _less_id(serde.loads_typed((tag, blob))),
            msgspec.json.decode(metadata) if metadata else {},
            [
                (path, task, place, channel, serde.loads_typed((kind, value)))
                for path, task, place, channel, kind, value in database.execute(
                    writes, (thread_id, ns, id_)
                )
            ],
        )


_THREADS = "SELECT DISTINCT thread_id FROM checkpoints ORDER BY 1"
_CHECKPOINTS = """
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata
FROM checkpoints WHERE thread_id = ? ORDER BY checkpoint_id, checkpoint_ns"""
_WRITES = """
SELECT {}, task_id, idx, channel, type, value FROM writes
WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY 1, task_id, idx"""


@contextmanager
def _postgres(url: str, serde: SerializerProtocol) -> Iterator[_Source]:
    try:
        psycopg = importlib.import_module("psycopg")
        dict_row = importlib.import_module("psycopg.rows").dict_row
        saver: Any = importlib.import_module("langgraph.checkpoint.postgres").PostgresSaver
    except ImportError as error:
        raise MissingExtraError(
            str(error), hint="pip install langgraph-checkpoint-postgres 'psycopg[binary]'"
        ) from error
    options = "-c default_transaction_read_only=on"
    with psycopg.connect(url, autocommit=True, options=options, row_factory=dict_row) as database:
        source = saver(database, serde=serde)

        yield _Source(
            lambda: [row["thread_id"] for row in database.execute(_THREADS)],
            lambda thread_id: _postgres_rows(database, source, thread_id, serde),
        )


def _postgres_rows(
    database: Any, source: Any, thread_id: str, serde: SerializerProtocol
) -> Iterator[_Row]:
    for one in database.execute(_POSTGRES_CHECKPOINTS, [thread_id]).fetchall():
        address = Address(thread_id, one["checkpoint_ns"], one["checkpoint_id"])
        found = source.get_tuple(address.config())
        if found is None:
            continue  # deleted since
        written = database.execute(_POSTGRES_WRITES, [thread_id, address.ns, address.checkpoint_id])
        parent = found.parent_config
        yield _Row(
            address,
            parent["configurable"]["checkpoint_id"] if parent else None,
            _less_id(found.checkpoint),
            dict(found.metadata),
            [
                (
                    *(row["task_path"], row["task_id"], row["idx"], row["channel"]),
                    serde.loads_typed((row["type"], row["blob"])),
                )
                for row in written
            ],
        )


_POSTGRES_CHECKPOINTS = """
SELECT checkpoint_ns, checkpoint_id FROM checkpoints
WHERE thread_id = %s ORDER BY checkpoint_id, checkpoint_ns"""
_POSTGRES_WRITES = """
SELECT task_path, task_id, idx, channel, type, blob FROM checkpoint_writes
WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s
ORDER BY task_path, task_id, idx"""


def _less_id(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in checkpoint.items() if key != "id"}
