"""Microsoft Agent Framework's checkpoints in Surehold's journals.

```python
workflow = WorkflowBuilder(..., checkpoint_storage=SureholdCheckpointStorage("sqlite:///w.db"))
```
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import msgspec

from surehold.errors import DecodeError, SureholdError
from surehold.lazy import extra

with extra("agent-framework"):
    from agent_framework import WorkflowCheckpoint
    from agent_framework.exceptions import WorkflowCheckpointException

from surehold.core.records import Door, Header, check_run_id
from surehold.core.state import Lineage, Place, State, read_metadata
from surehold.core.values import Lazy, Nature, at_path, decode, weigh
from surehold.engine.commit import Face, Steps, Work, delete, save_draft
from surehold.engine.journal import CheckpointDraft
from surehold.engine.managers import CheckpointManager
from surehold.errors import EncodeError, StorageError
from surehold.integrations.agent_framework.types import learn, register_framework
from surehold.integrations.branching import SortedBranches
from surehold.integrations.journal_text import PAGE, Found, Reading, joined, pages
from surehold.integrations.managed import Managed
from surehold.integrations.type_learning import encode_adopting
from surehold.storage.base import RecordQuery, Storage

logger = logging.getLogger("surehold.integrations")

_NAME = "agent-framework"
_TIME = "timestamp"
_VALUES = ("state", "messages", "pending_request_info_events")
_BESIDE = tuple(
    field.name
    for field in fields(WorkflowCheckpoint)
    if field.name not in (*_VALUES, "checkpoint_id", "previous_checkpoint_id")
)

OnFailure = Callable[[WorkflowCheckpoint, SureholdError], None]


def _by_time(checkpoint_id: str, metadata: Mapping[str, Any]) -> str:
    """The sort key of a workflow's checkpoints: when they were made, in UTC."""
    text = str(metadata.get(_TIME, ""))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return (
        moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC).isoformat("T", "microseconds")
    )


_BRANCHING = SortedBranches(_by_time)


class SureholdCheckpointStorage(Managed):
    """A `CheckpointStorage` on any Surehold storage; what `save` returned is durable.

    *storage* is a `Storage`, an address, a registered name, a `CheckpointManager`, or None for
    the default address. The checkpoints of one workflow name are one run, so everything that
    works on runs works on workflows. The framework knows no tenants and no threads: give each a
    *namespace*, and their workflows of the same name are kept apart.

    Nothing is pickled. Classes of your own are registered when they are first saved; *types* are
    those that may have to be read before, in a new process.

    The framework continues when a save fails and only logs it. So that it cannot be overlooked the
    failure is kept (`failures`, `raise_failures`), noted as an event on the current trace span,
    and handed to *on_failure*.

    >>> import asyncio
    >>> storage = SureholdCheckpointStorage("memory://")
    >>> asyncio.run(storage.get_latest(workflow_name="review")) is None
    True
    """

    def __init__(
        self,
        storage: CheckpointManager | Storage | str | None = None,
        *,
        namespace: str = "",
        types: Collection[type] = (),
        on_failure: OnFailure | None = None,
    ) -> None:
        register_framework()
        learn(types)
        self._manage(storage)
        self.failures: list[SureholdError] = []
        """Errors of failed saves since the last `raise_failures`."""
        self._workflows = _Workflows(self.manager.face, namespace)
        self._on_failure = on_failure

    def __bool__(self) -> bool:
        """True: the framework takes one that is not for none at all."""
        return True

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a copy of *checkpoint*, over an earlier one with its id; returns the id."""
        try:
            header = await self._awaited.perform(self._workflows.save(checkpoint))
        except SureholdError as error:
            self._failed(checkpoint, error)
            raise
        if header is None:  # the manager only warns of what it could not save
            lost = f"checkpoint {checkpoint.checkpoint_id} was not stored"
            self._failed(checkpoint, StorageError(lost, run_id=checkpoint.workflow_name))
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """The checkpoint with that id; a `WorkflowCheckpointException` if there is none."""
        found = await self._awaited.call(self._workflows.load, checkpoint_id)
        if found is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return found

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """All checkpoints of a workflow, oldest first."""
        return await self._awaited.call(self._workflows.every, workflow_name)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """The ids of all checkpoints of a workflow, oldest first, without reading them."""
        return await self._awaited.call(self._workflows.ids, workflow_name)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The checkpoint with the newest timestamp; of equal ones the last saved."""
        return await self._awaited.call(self._workflows.latest, workflow_name)

    async def delete(self, checkpoint_id: str) -> bool:
        """Remove a checkpoint; False if there is none with that id."""
        return await self._awaited.perform(self._workflows.delete(checkpoint_id))

    def raise_failures(self) -> None:
        """Raise the first failure since this was last called, if there was one."""
        failures, self.failures = self.failures, []
        if failures:
            raise failures[0]

    def _failed(self, checkpoint: WorkflowCheckpoint, error: SureholdError) -> None:
        from opentelemetry import trace

        self.failures.append(error)
        logger.error(
            "workflow %s: checkpoint %s was not saved: %s",
            checkpoint.workflow_name,
            checkpoint.checkpoint_id,
            error,
        )
        facts = {
            "workflow.name": checkpoint.workflow_name,
            "checkpoint.id": checkpoint.checkpoint_id,
            "error": str(error),
        }
        trace.get_current_span().add_event("surehold.checkpoint_not_saved", facts)
        if self._on_failure is not None:
            self._on_failure(checkpoint, error)


class _Workflows:
    """The operations on workflows' checkpoints, as steps."""

    def __init__(self, face: Face, namespace: str) -> None:
        self._face = face
        self._namespace = namespace
        self._name = f"{_NAME}/{namespace}" if namespace else _NAME
        self._reading = Reading(face, _by_time)

    def _run_id(self, workflow_name: str) -> str:
        name = check_run_id(workflow_name, "workflow_name")
        parts = [self._namespace, name] if self._namespace else [name]
        return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)

    def save(self, checkpoint: WorkflowCheckpoint) -> Steps[Header | None]:
        texts = {name: _text(name, getattr(checkpoint, name)) for name in _VALUES}
        said = {name: getattr(checkpoint, name) for name in _BESIDE}
        beside = b'{"agent_framework":%b}' % encode_adopting(said, objects=True)
        place = Place(
            run_id=self._run_id(checkpoint.workflow_name),
            name=self._name,
            step=max(0, checkpoint.iteration_count),
            metadata=read_metadata({**_plain(checkpoint.metadata), _TIME: checkpoint.timestamp}),
        )
        draft = CheckpointDraft(
            form="",
            place=place,
            values={key: Lazy(text) for key, text in texts.items()},
            natures=dict.fromkeys(texts, Nature.TAGGED),
            lineage=Lineage(checkpoint.previous_checkpoint_id),
            id=check_run_id(checkpoint.checkpoint_id, "checkpoint_id"),
            door=Door("thread"),
            fingerprint=checkpoint.graph_signature_hash,
            extra=lambda _: beside,
            branching=_BRANCHING,
        )
        shown = None
        if self._face.hooks is not None:
            shown = State.restore(texts, place, datetime.now(UTC), None)
        header = yield from save_draft(self._face, draft, shown, force=True)
        if header is not None and shown is None:
            self._reading.remember(header, texts, beside)
        return header

    def load(self, checkpoint_id: str) -> WorkflowCheckpoint | None:
        return self._loaded(self._with_id(checkpoint_id))

    def latest(self, workflow_name: str) -> WorkflowCheckpoint | None:
        return self._loaded(self._reading.newest(self._run_id(workflow_name)))

    def _loaded(self, header: Header | None) -> WorkflowCheckpoint | None:
        found = self._reading.load(header) if header is not None else None
        return _checkpoint(found) if found is not None else None

    def every(self, workflow_name: str) -> list[WorkflowCheckpoint]:
        made: list[WorkflowCheckpoint] = []
        for page in pages(self._headers(workflow_name), PAGE):
            found = self._reading.load_many(page)
            made += (_checkpoint(one) for one in found.values())
        return made

    def ids(self, workflow_name: str) -> list[str]:
        return [header.id for header in self._headers(workflow_name)]

    def _headers(self, workflow_name: str) -> list[Header]:
        query = RecordQuery(run_id=self._run_id(workflow_name), scope="")
        return list(self._face.storage.headers(query))[::-1]

    def delete(self, checkpoint_id: str) -> Steps[bool]:
        header: Header | None = yield Work(lambda: self._with_id(checkpoint_id))
        if header is None:
            return False
        yield from delete.hide(self._face, header.run_id, self._name, [header.seq])
        self._reading.forget(header.run_id)
        return True

    def _with_id(self, checkpoint_id: str) -> Header | None:
        """The newest checkpoint with that id among the workflows of this namespace."""
        for found in self._face.storage.find(checkpoint_id) if checkpoint_id else ():
            if found.id == checkpoint_id and found.name == self._name:
                return found
        return None


def _text(name: str, value: Any) -> bytes:
    try:
        return encode_adopting(value, objects=True)
    except EncodeError as error:
        at_path(error, name)
        raise


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The part of *metadata* that can be searched for."""
    found: dict[str, Any] = {}
    for key, value in metadata.items():
        try:
            if weigh({key: value}) is Nature.PLAIN:
                found |= read_metadata({key: value})
        except EncodeError:
            continue  # it is stored beside the state, with everything else
    return found


class _Beside(msgspec.Struct):
    agent_framework: msgspec.Raw


_read_beside = msgspec.json.Decoder(_Beside).decode


def _checkpoint(found: Found) -> WorkflowCheckpoint:
    header = found.header
    try:
        said = _read_beside(found.beside)
    except msgspec.MsgspecError as error:
        raise DecodeError(
            f"run {header.run_id!r} is not a workflow of Agent Framework",
            hint="use another storage, or another namespace",
            run_id=header.run_id,
        ) from error
    return WorkflowCheckpoint(
        checkpoint_id=header.id,
        previous_checkpoint_id=header.parent,
        **_value(bytes(said.agent_framework)),
        **{name: _value(joined(found.texts[name])) for name in _VALUES},
    )


def _value(text: bytes) -> Any:
    try:
        return decode(text, strict=True)
    except DecodeError:
        register_framework()  # a part of it may have been loaded since
        return decode(text, strict=True)
