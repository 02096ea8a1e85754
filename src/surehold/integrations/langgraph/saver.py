"""A LangGraph checkpointer that keeps threads in Surehold's journals.

```python
graph = builder.compile(checkpointer=SureholdSaver("sqlite:///threads.db"))
```
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from surehold.integrations.managed import Managed
from surehold.lazy import extra

with extra("langgraph"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
        get_checkpoint_metadata,
    )
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from surehold.core.values import Items, encode
from surehold.engine.managers import CheckpointManager
from surehold.integrations.langgraph.backpressure import Backpressure
from surehold.integrations.langgraph.message_cache import MessageCache, value_of
from surehold.integrations.langgraph.records import Address
from surehold.integrations.langgraph.tasks import Tasks, begin, install
from surehold.integrations.langgraph.threads import Threads
from surehold.integrations.langgraph.types import Sealed, encode_value, register_all
from surehold.integrations.type_learning import adopt, adopt_named
from surehold.storage.base import Storage

# The default medium, loaded here and not within a graph's first call.
from surehold.storage.registry import open_storage  # noqa: F401
from surehold.storage.sqlite import SQLiteStorage  # noqa: F401

if TYPE_CHECKING:
    from surehold.integrations.langgraph.upkeep import Upkeep


class SureholdSaver(BaseCheckpointSaver[str], Managed):
    """Keeps LangGraph threads in any Surehold storage; blocking and awaited.

    *storage* is a `Storage`, an address such as ``sqlite:///threads.db``, a registered name, a
    `CheckpointManager` (for encryption, hooks or retention), or None for the default address.
    A thread is a run and a namespace a scope, so everything that works on runs works on threads.
    *name* is the name of those runs.

    Classes of your own that are in the state are registered when they are first saved; *types*
    are those that may have to be read before, in a new process. With *single_writer*, of two
    invocations that resume from the same checkpoint at once the second gets a `ConflictError`.
    Forks and updates by hand are still allowed.

    >>> saver = SureholdSaver("memory://")
    >>> saver.get_tuple({"configurable": {"thread_id": "1"}}) is None
    True
    """

    def __init__(
        self,
        storage: CheckpointManager | Storage | str | None = None,
        *,
        name: str = "langgraph",
        types: Collection[type] = (),
        single_writer: bool = False,
    ) -> None:
        super().__init__()
        register_all()
        adopt_named(types)
        self._manage(storage)
        self.threads = Threads(self.manager.face, name)
        self.run_name = name
        self._messages = MessageCache()
        self._backpressure = Backpressure(self._flush)
        self._single_writer = single_writer
        self.surehold_tasks = Tasks()
        install()

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        begin()
        return self.threads.get(Address.of(config), self._value)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        begin()
        return await self._awaited.call(self.threads.get, Address.of(config), self._value)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        for page in self._pages(config, filter, before, limit):
            yield from page

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        listing = self._pages(config, filter, before, limit)
        while (page := await self._awaited.call(next, listing, None)) is not None:
            for found in page:
                yield found

    def _pages(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Iterator[Any]:
        return self.threads.listing(
            Address.of(config) if config else None,
            self._value,
            wanted=filter or {},
            before=_id_in(before),
            limit=limit,
        )

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self.threads.delta_history(Address.of(config), channels, self._value)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        read = self.threads.delta_history
        return await self._awaited.call(read, Address.of(config), channels, self._value)

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        landing = self.surehold_tasks.landing.of(config, checkpoint["id"])
        with self._backpressure.saving(new_versions.values()) as stored, landing:
            self.manager.perform(self._put(config, checkpoint, metadata, stored))
        return _config_of(config, checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        landing = self.surehold_tasks.landing.of(config, checkpoint["id"])
        with self._backpressure.saving(new_versions.values()) as stored, landing:
            await self._awaited.perform(self._put(config, checkpoint, metadata, stored))
        return _config_of(config, checkpoint["id"])

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Any,
        metadata: Any,
        stored: Callable[[], None],
    ) -> Any:
        address = Address.of(config)
        texts = {
            channel: self._channel_text((address.thread_id, address.scope, channel), value)
            for channel, value in checkpoint["channel_values"].items()
        }
        full: Any = get_checkpoint_metadata(config, metadata)
        forward = self._single_writer and full.get("source") in (None, "input", "loop")
        return self.threads.put(
            address, checkpoint, texts, full, fast_forward_only=forward, stored=stored
        )

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        if writes:
            self.manager.perform(self._put_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        if writes:
            await self._awaited.perform(self._put_writes(config, writes, task_id, task_path))

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, path: str
    ) -> Any:
        texts = [self._text(value) for _, value in writes]
        address = Address.of(config)
        return self.threads.put_writes(address, writes, texts, task_id, path, self._value)

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self._backpressure.after(current)

    def _flush(self) -> bool:
        """Send off what the running loop saves, unless hooks of its own come first."""
        self._awaited.flush()
        return self.manager.hook_manager is None

    # Removing and copying

    @cached_property
    def _upkeep(self) -> Upkeep:
        from surehold.integrations.langgraph.upkeep import Upkeep

        return Upkeep(self.manager.face, self.run_name, self.threads)

    def delete_thread(self, thread_id: str) -> None:
        self._messages.forget(str(thread_id))
        self.manager.perform(self._upkeep.delete_thread(str(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        self._messages.forget(str(thread_id))
        await self._awaited.perform(self._upkeep.delete_thread(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.manager.perform(self._upkeep.delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._awaited.perform(self._upkeep.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        steps = self._upkeep.copy_thread(str(source_thread_id), str(target_thread_id))
        self.manager.perform(steps)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        steps = self._upkeep.copy_thread(str(source_thread_id), str(target_thread_id))
        await self._awaited.perform(steps)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        for thread_id in thread_ids:
            self.manager.perform(self._upkeep.prune(str(thread_id), strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        for thread_id in thread_ids:
            await self._awaited.perform(self._upkeep.prune(str(thread_id), strategy))

    # Types

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Any:
        """A saver that can read these types, which LangGraph took from a graph's schema."""
        adopt(
            cls
            for module, *names in extra_allowlist
            if isinstance(cls := _attribute(sys.modules.get(module), names), type)
        )
        return super().with_allowlist(extra_allowlist)

    def _channel_text(self, key: tuple[str, str, str], value: Any) -> bytes | Items:
        return self._messages.of(key, value) if self._is_ours() else self._text(value)

    def _text(self, value: Any) -> bytes:
        if self._is_ours():
            return encode_value(value)
        return encode(Sealed(*self.serde.dumps_typed(value)))

    def _value(self, text: bytes | Items) -> Any:
        value = value_of(text)
        if type(value) is Sealed:
            return self.serde.loads_typed((value.kind, value.data))
        return value

    def _is_ours(self) -> bool:
        """True if values are stored as our own text, not by a serializer of the user's."""
        return type(self.serde) is JsonPlusSerializer


def _config_of(config: RunnableConfig, checkpoint_id: str) -> RunnableConfig:
    made: RunnableConfig = Address.of(config).config(checkpoint_id)
    return made


def _id_in(config: RunnableConfig | None) -> str | None:
    return config.get("configurable", {}).get("checkpoint_id") if config else None


def _attribute(place: Any, names: Sequence[str]) -> Any:
    for name in names:
        place = getattr(place, name, None)
    return place
