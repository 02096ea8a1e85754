"""Step, node, status and questions of a thread, derived from what LangGraph saves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from langgraph.checkpoint.base import PendingWrite
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME, TASKS

from surehold.engine.journal import Note
from surehold.integrations.langgraph.records import Address
from surehold.integrations.langgraph.types import encode_value

_START = "__start__"
_TRIGGER = "branch:to:"
"""The start of the names of the channels that make a `StateGraph` run a node."""
_PULL = "~__pregel_pull, "
"""The start of the path of a task that a channel triggered; the node's name follows."""


def step_of(metadata: Mapping[str, Any]) -> int:
    """LangGraph's step number; its input, step -1, counts as step 0."""
    step = metadata.get("step")
    return max(0, step) if isinstance(step, int) else 0


def status_of(checkpoint: Mapping[str, Any]) -> str:
    """Completed if no node is due after this checkpoint, as far as its channels tell.

    A graph that was not built with `StateGraph` or `entrypoint` has channels of its own, which do
    not tell; its threads stay running.
    """
    values, known = checkpoint["channel_values"], checkpoint.get("channel_versions", {})
    if _START not in known:
        return "running"
    due = any(name == _START or name.startswith(_TRIGGER) for name in values)
    return "running" if due or values.get(TASKS) else "completed"


def nodes_of(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """The nodes whose step led to this checkpoint; None if no channel triggered one.

    A node has seen the newest version of its channel when it runs, and the step makes the next one.
    """
    if metadata.get("source") != "loop":
        return None
    try:
        newest = max(map(_number, checkpoint["channel_versions"].values()), default=0)
        seen = {
            name: max(map(_number, versions.values()))
            for name, versions in checkpoint["versions_seen"].items()
            if versions
        }
    except (ValueError, TypeError):  # versions of the saver that a thread was imported from
        return None
    last = max(seen.values(), default=0)
    if newest - last > 1:  # tasks that were sent, which no channel triggers
        return None
    return ", ".join(sorted(name for name, version in seen.items() if version == last)) or None


def _number(version: str | float) -> int:
    return int(str(version).partition(".")[0])


def _node_of(path: str) -> str | None:
    return path.removeprefix(_PULL) if path.startswith(_PULL) else None


def asks(address: Address, writes: Sequence[tuple[str, Any]]) -> bool:
    """True for the thread's own writes by which a task asks, or takes an answer.

    LangGraph writes what a subgraph asks to the thread's own namespace as well.
    """
    return not address.scope and any(channel in (INTERRUPT, RESUME) for channel, _ in writes)


def interrupts(channel: str, value: Any) -> list[Any]:
    """The interrupts in a write to *channel*; others may be written there too."""
    if channel != INTERRUPT or not isinstance(value, list | tuple):
        return []
    return [one for one in value if isinstance(getattr(one, "id", None), str)]


def _asked(writes: Sequence[tuple[str, Any]]) -> list[Any]:
    return [one for channel, value in writes for one in interrupts(channel, value)]


def answer_notes(
    address: Address, writes: Sequence[tuple[str, Any]], before: Collection[str]
) -> Iterator[Note]:
    """Notes that end the questions *before*, by id, which a task no longer asks."""
    from surehold.core.records import Answer

    for old in sorted(set(before) - {one.id for one in _asked(writes)}):
        answer = Answer(id=old, value=msgspec.Raw(b"null"))
        yield Note(kind="answer", content=answer, parent=address.checkpoint_id)


def question_notes(
    address: Address, writes: Sequence[tuple[str, Any]], path: str
) -> Iterator[Note]:
    """Notes of the questions that a task asks with `interrupt`."""
    from surehold.core.records import Question

    for asked in _asked(writes):
        schema = getattr(asked, "response_schema", None) or _form_of(asked.value)
        question = Question(
            id=asked.id,
            text=msgspec.Raw(encode_value(asked.value)),
            schema=schema if isinstance(schema, dict) else None,
        )
        node = _node_of(path)
        yield Note(kind="question", content=question, parent=address.checkpoint_id, node=node)


def _form_of(question: Any) -> dict[str, Any] | None:
    """The schema of answers to an approval of LangChain's middleware, else None."""
    requests = question.get("action_requests") if isinstance(question, Mapping) else None
    if not isinstance(requests, list | tuple):
        return None
    return {
        "type": "object",
        "properties": {"decisions": {"type": "array"}},
        "required": ["decisions"],
        "additionalProperties": False,
        "examples": [{"decisions": [{"type": "approve"} for _ in requests]}],
    }


def with_answers(
    writes: list[PendingWrite], resumed: Mapping[str, int], answers: Iterable[tuple[int, str, Any]]
) -> list[PendingWrite]:
    """Add the answers given from outside to the values that the tasks resume with.

    *answers* are the seq of the note, the question's id and the value, oldest first. *resumed* is
    the seq at which LangGraph itself wrote such values for a task; older answers are among them.
    """
    asked = {one.id: task for task, *write in writes for one in interrupts(*write)}
    values: dict[str, list[Any]] = {}
    for task, channel, value in writes:
        if channel == RESUME:
            values[task] = [*value] if isinstance(value, list) else [value]
    added: set[str] = set()
    for seq, question, value in answers:
        task = asked.get(question, "")
        if task and seq > resumed.get(task, 0):
            values.setdefault(task, []).append(value)
            added.add(task)
    kept = [one for one in writes if not (one[1] == RESUME and one[0] in added)]
    return [*kept, *((task, RESUME, values[task]) for task in sorted(added))]
