"""A model that says what a script says: for tests of what is built on models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from surehold.agents.models import Message, Reply, ToolSpec
from surehold.core.values import Usage
from surehold.errors import UsageError

Script: TypeAlias = Callable[[Sequence[Message]], Reply | str] | Sequence[Reply | str]


class ScriptedModel:
    """A model that replies by a function of the messages, alike in any process.

    The script is a function of the messages, or a list of replies: then the number of assistant
    messages so far says which one comes next. A text that is JSON is the structured answer too,
    where one is asked for. With *log*, each real call appends a line to that file and syncs it,
    so that calls can be counted over processes that were killed. A reply without a usage counts
    one token for four characters; *price* is dollars for a million of them, and None is unknown.

    >>> import asyncio
    >>> model = ScriptedModel(["Hello", "Goodbye"])
    >>> asyncio.run(model.respond([{"role": "user", "content": "Hi"}])).text
    'Hello'
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        log: str | os.PathLike[str] | None = None,
        price: float | None = None,
    ) -> None:
        self.name = name
        self._script = script
        self._log = None if log is None else Path(log)
        self._price = price

    async def respond(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        schema: Mapping[str, Any] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        """Return the script's reply to *messages*."""
        reply = self._next(messages)
        if isinstance(reply, str):
            reply = Reply(text=reply)
        if self._log is not None:
            self._write(messages, reply)
        if on_text is not None and reply.text:
            on_text(reply.text)
        data, usage = reply.data, reply.usage
        if schema is not None and data is None and not reply.tool_calls:
            data = _read(reply.text)
        if usage == Usage():
            usage = self._usage(messages, reply)
        return Reply(reply.text, reply.tool_calls, data, usage, self.name)

    def _next(self, messages: Sequence[Message]) -> Reply | str:
        script = self._script
        if callable(script):
            return script(messages)
        turn = sum(1 for message in messages if message["role"] == "assistant")
        if turn >= len(script):
            raise UsageError(
                f"the script has {len(script)} replies, and reply {turn + 1} was asked for"
            )
        return script[turn]

    def _usage(self, messages: Sequence[Message], reply: Reply) -> Usage:
        read = sum(len(message.get("content") or "") for message in messages) // 4
        written = max(1, len(reply.text) // 4)
        cost = None if self._price is None else (read + written) * self._price / 1e6
        return Usage(read, written, cost)

    def _write(self, messages: Sequence[Message], reply: Reply) -> None:
        assert self._log is not None
        line = {
            "pid": os.getpid(),
            "messages": len(messages),
            "text": reply.text[:80],
            "tools": [call.name for call in reply.tool_calls],
        }
        file = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, json.dumps(line).encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
