"""aiohttp: answers given back chunk by chunk, and what leaves a stream before its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from tests.model_server import ModelServer, model_server

import surehold
from surehold import CheckpointManager
from surehold.errors import ShapeError


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager("memory://") as opened:
        yield opened


def ask(session: aiohttp.ClientSession, url: str, text: str, **more: Any) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
    return session.post(f"{url}/v1/chat/completions", json=body)


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
async def test_a_replay_gives_the_chunks_that_came(
    server: ModelServer, manager: CheckpointManager, compress: bool
) -> None:
    server.compress = compress

    async def program() -> list[Any]:
        found: list[Any] = []
        async with aiohttp.ClientSession() as session:
            for n in range(3):
                async with ask(session, server.url, f"{n}", stream=True) as streamed:
                    chunks = [data async for data, _ in streamed.content.iter_chunks()]
                    found.append([data for data in chunks if data])  # the end may come alone
                async with ask(session, server.url, f"whole {n}") as answer:
                    found.append([answer.status, await answer.json()])
        return found

    with surehold.record("mine", storage=manager) as recording:
        live = await program()
    assert recording.live == server.count == 6
    with surehold.replay("mine", storage=manager):
        assert await program() == live
    assert server.count == 6


async def retried(url: str, read: Callable[[Any], Awaitable[bytes]]) -> bytes:
    timeout = aiohttp.ClientTimeout(total=2)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for _ in range(9):
            try:
                async with ask(session, url, "one", stream=True) as streamed:
                    return await read(streamed)
            except (aiohttp.ClientError, TimeoutError):
                continue
    return b""


async def whole(streamed: Any) -> bytes:
    data: bytes = await streamed.read()
    return data


async def in_time(streamed: Any) -> bytes:
    async with asyncio.timeout(1):
        return await whole(streamed)


@pytest.mark.parametrize("read", [whole, in_time])
@pytest.mark.parametrize("break_off", ["cut", "stall"])
async def test_a_stream_that_breaks_off_is_not_recorded_and_its_retry_is(
    server: ModelServer, manager: CheckpointManager, break_off: str, read: Any
) -> None:
    def broken() -> None:
        if break_off == "stall":
            time.sleep(4)
        raise ConnectionError("the server fails")

    server.kill[1, "midway"] = broken
    with surehold.record("mine", storage=manager) as recording:
        live = await retried(server.url, read)
    asked = server.count
    assert recording.live == 1 < asked and b"[DONE]" in live
    with surehold.replay("mine", storage=manager):
        assert await retried(server.url, read) == live
    assert server.count == asked


async def test_a_stream_that_was_left_early_ends_there_again(
    server: ModelServer, manager: CheckpointManager
) -> None:
    async def program(most: int) -> list[bytes]:
        found: list[bytes] = []
        async with (
            aiohttp.ClientSession() as session,
            ask(session, server.url, "one", stream=True) as streamed,
        ):
            async for data, _ in streamed.content.iter_chunks():
                found.append(data)
                if len(found) == most:
                    break
        return found

    server.kill[1, "midway"] = lambda: time.sleep(0.5)
    with surehold.record("mine", storage=manager):
        live = await program(1)
    with surehold.replay("mine", storage=manager):
        assert await program(1) == live
    with (
        pytest.raises(ShapeError, match="reads further"),
        surehold.replay("mine", storage=manager),
    ):
        await program(9999)
    assert server.count == 1
