"""Resumable streams of an MCP server: a client that loses its stream gets every event once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import JSONRPCNotification

from surehold.errors import UsageError
from surehold.integrations.mcp import SureholdEventStore
from surehold.storage.base import RunQuery
from surehold.storage.registry import open_storage

VERSION = "2025-11-25"


def make_server() -> MCPServer:
    server = MCPServer("counting")

    @server.tool()
    async def count(ctx: Context, name: str, n: int) -> str:
        for number in range(n):
            await ctx.report_progress(number, n, f"{name} {number}")
            await asyncio.sleep(0.01)
        return f"{name} counted to {n}"

    return server


@contextmanager
def served(store: SureholdEventStore, *, apart: bool = True) -> Iterator[str]:
    """The URL of a real server on loopback."""
    app: Any = make_server().streamable_http_app(event_store=store, retry_interval=0)
    if apart:
        app = store.by_session(app)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        thread.join(30)


class Client:
    """A client of streamable HTTP that breaks its streams off."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.http, self.url = http, url
        self.headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": VERSION,
        }
        self.last = ""

    async def start(self) -> None:
        client = {"name": "test", "version": "1"}
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        async with self.http.stream("POST", self.url, json=body, headers=self.headers) as said:
            self.headers["mcp-session-id"] = said.headers["mcp-session-id"]
            assert [one async for one in self.events(said)]
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await self.http.post(self.url, json=ready, headers=self.headers)).is_success

    async def events(self, said: httpx.Response) -> Any:
        async for line in said.aiter_lines():
            if line.startswith("id:"):
                self.last = line[3:].strip()
            elif line.startswith("data:") and line[5:].strip():
                yield json.loads(line[5:])

    async def call(self, store: SureholdEventStore, name: str, n: int, seen: int) -> list[str]:
        """Call the tool, lose the stream after *seen* events, and come back when it has ended."""
        params = {
            "name": "count",
            "arguments": {"name": name, "n": n},
            "_meta": {"progressToken": "token"},
        }
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        got: list[str] = []
        async with self.http.stream("POST", self.url, json=body, headers=self.headers) as said:
            async for event in self.events(said):
                got.append(event["params"]["message"])
                if len(got) == seen:
                    break
        async with asyncio.timeout(30):
            while not await asyncio.to_thread(has_ended, store, name):
                await asyncio.sleep(0.01)
        headers = self.headers | {"last-event-id": self.last}
        async with asyncio.timeout(30), self.http.stream("GET", self.url, headers=headers) as said:
            async for event in self.events(said):
                if "result" in event:
                    return [*got, event["result"]["content"][0]["text"]]
                got.append(event["params"]["message"])
        raise AssertionError("the stream ended without a result")


def has_ended(store: SureholdEventStore, name: str) -> bool:
    """True if the result of the call is stored."""
    runs = store.manager.storage.runs(RunQuery(name="mcp-events"))
    events = [event["message"] for run in runs for event in store._lists.read(run.run_id).values()]
    return any("result" in one and f"{name} counted" in str(one) for one in events if one)


@pytest.mark.parametrize("medium", ["memory://", "sqlite:///{}/events.db", "file://{}/events"])
@pytest.mark.parametrize("seen", [1, 5])
async def test_clients_that_lose_their_streams_get_each_of_their_events_once(
    medium: str, seen: int, tmp_path: Path
) -> None:
    with SureholdEventStore(medium.format(tmp_path)) as store, served(store) as url:
        async with httpx.AsyncClient(timeout=30) as http:
            clients = [Client(http, url) for _ in range(2)]
            for client in clients:
                await client.start()
            calls = [
                client.call(store, name, 12, seen)
                for client, name in zip(clients, "ab", strict=True)
            ]
            found = await asyncio.gather(*calls)
    for name, got in zip("ab", found, strict=True):
        assert got == [*(f"{name} {number}" for number in range(12)), f"{name} counted to 12"]


async def test_a_session_is_a_run_and_gets_no_events_of_another(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/events.db"
    with SureholdEventStore(address) as store, served(store) as url:
        async with httpx.AsyncClient(timeout=30) as http:
            first, second = Client(http, url), Client(http, url)
            await first.start()
            await second.start()
            await first.call(store, "a", 3, 1)
            begin = first.last.rpartition("-")[0] + "-1"
            headers = second.headers | {"last-event-id": begin}
            async with asyncio.timeout(30), http.stream("GET", url, headers=headers) as said:
                assert [one async for one in second.events(said)] == []
    with open_storage(address) as storage:
        assert len(list(storage.runs(RunQuery(name="mcp-events")))) == 2


def message(number: int) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method="count", params={"n": number})


async def replayed(store: SureholdEventStore, after: str) -> tuple[str | None, list[Any]]:
    got: list[Any] = []

    async def send(event: Any) -> None:
        got.append((event.event_id, event.message.params["n"]))

    return await store.replay_events_after(after, send), got


async def test_only_later_events_of_the_same_stream_are_sent(address: str) -> None:
    with SureholdEventStore(address) as store:
        ids = [await store.store_event("ab"[n % 2], message(n)) for n in range(6)]
        assert await store.store_event("a", None) == "7"
        assert ids == ["1", "2", "3", "4", "5", "6"]
        assert await replayed(store, "1") == ("a", [("3", 2), ("5", 4)])
        assert await replayed(store, "6") == ("b", [])
        for unknown in ("", "0", "8", "x", "other-1", "1.5", "²"):
            assert await replayed(store, unknown) == (None, [])


async def test_another_process_replays_what_was_stored(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/events.db"
    for number in range(3):
        with SureholdEventStore(address) as store:
            await store.store_event("a", message(number))
    with SureholdEventStore(address) as store:
        assert await replayed(store, "1") == ("a", [("2", 1), ("3", 2)])


async def test_the_newest_events_are_kept_and_their_ids_go_on(tmp_path: Path) -> None:
    with SureholdEventStore(f"sqlite:///{tmp_path}/events.db", most=4) as store:
        ids = [await store.store_event("a", message(n)) for n in range(30)]
        assert ids == [str(n + 1) for n in range(30)]
        stream, got = await replayed(store, "27")
        assert stream == "a" and got == [(str(n + 1), n) for n in range(27, 30)]
        assert await replayed(store, "10") == (None, [])
    with pytest.raises(UsageError, match="most is 0"):
        SureholdEventStore("memory://", most=0)
