"""Exports threads to another LangGraph saver, as a way out.

Only the public interface of the other saver is used. Checkpoints that it has already are skipped,
so an interrupted export continues where it was. Each thread is read again there and compared before
it is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from surehold.errors import CorruptError
from surehold.integrations.langgraph.importer import CopiedThread
from surehold.integrations.langgraph.records import Address, paths_of
from surehold.integrations.langgraph.saver import SureholdSaver
from surehold.storage.base import RunQuery


def export_threads(
    saver: SureholdSaver, other: BaseCheckpointSaver[Any], *, threads: Collection[str] | None = None
) -> Iterator[CopiedThread]:
    """Copy the threads of *saver* to *other*, one after another; only *threads*, if given.

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
            _put_writes(saver, other, one)
        if there is None:
            _put(other, one)
            added += 1
    for one in found:
        _compare(other, one, other.get_tuple(one.config))
    return CopiedThread(thread_id, len(found), added)


def _put_writes(
    saver: SureholdSaver, other: BaseCheckpointSaver[Any], one: CheckpointTuple
) -> None:
    address = Address.of(one.config)
    paths = paths_of(saver.threads.reading.written(address, address.checkpoint_id or ""))
    for task, writes in _writes(one.pending_writes).items():
        other.put_writes(one.config, writes, task, paths.get(task, ""))


def _put(other: BaseCheckpointSaver[Any], one: CheckpointTuple) -> None:
    config = Address.of(one.config).config()
    config["configurable"]["checkpoint_id"] = _id_of(one.parent_config)
    checkpoint: Any = {**one.checkpoint, "channel_values": _values(one)}
    other.put(config, checkpoint, one.metadata, checkpoint["channel_versions"])


def _id_of(config: Mapping[str, Any] | None) -> str | None:
    return config["configurable"].get("checkpoint_id") if config else None


def _values(one: CheckpointTuple) -> dict[str, Any]:
    return dict(one.checkpoint["channel_values"])


def _compare(
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
