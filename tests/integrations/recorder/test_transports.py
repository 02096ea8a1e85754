"""Requests of unchanged clients: recorded, and given back to the byte, chunk by chunk."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import requests
import urllib3
from tests.model_server import ModelServer, model_server

import surehold
from surehold.errors import ShapeError, UsageError
from surehold.integrations.recorder.inside import finder

CHAT = "/v1/chat/completions"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **more}


def blocking(library: Any) -> Callable[[str], list[Any]]:
    def program(url: str) -> list[Any]:
        with library.Client() as client:
            plain = client.post(url + CHAT, json=ask("one"))
            with client.stream("POST", url + CHAT, json=ask("two", stream=True)) as streamed:
                chunks = [*streamed.iter_raw()]
            with client.stream("POST", url + CHAT, json=ask("lines", stream=True)) as streamed:
                lines = [*streamed.iter_lines()]
        return [plain.text, plain.headers["content-type"], plain.reason_phrase, chunks, lines]

    return program


def awaiting(library: Any) -> Callable[[str], list[Any]]:
    async def program(url: str) -> list[Any]:
        async with library.AsyncClient() as client:
            plain = await client.post(url + CHAT, json=ask("one"))
            async with client.stream("POST", url + CHAT, json=ask("two", stream=True)) as streamed:
                chunks = [chunk async for chunk in streamed.aiter_raw()]
            return [plain.text, chunks]

    return lambda url: asyncio.run(program(url))


def with_requests(url: str) -> list[Any]:
    plain = requests.post(url + CHAT, json=ask("one"), timeout=30)
    two = ask("two", stream=True)
    with requests.post(url + CHAT, json=two, stream=True, timeout=30) as streamed:
        chunks = [*streamed.iter_content(chunk_size=None)]
    with requests.Session() as session:
        kept = [session.post(url + CHAT, json=ask(f"kept {n}"), timeout=30).text for n in range(3)]
    return [plain.json(), plain.reason, chunks, kept]


def with_urllib3(url: str) -> list[Any]:
    with urllib3.PoolManager() as pool:
        plain = pool.request("POST", url + CHAT, json=ask("one"))
        two = ask("two", stream=True)
        streamed = pool.request("POST", url + CHAT, json=two, preload_content=False)
        return [plain.data, plain.json(), [*streamed.stream(50)]]


def with_openai(url: str) -> list[Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-secret") as client:
        chat = client.chat.completions.create(**ask("one"))
        two = client.chat.completions.create(**ask("two"), stream=True)
        events = [event.to_json() for event in two]
        answer = client.responses.create(model="gpt-4o", input="three").output_text
        told = [e.to_json() for e in client.responses.create(model="m", input="x", stream=True)]
        numbers = client.embeddings.create(model="e", input="four", encoding_format="float")
        return [chat.to_json(), events, answer, told, numbers.data[0].embedding]


def with_anthropic(url: str) -> list[Any]:
    message: dict[str, Any] = {**ask("one"), "model": "claude-x", "max_tokens": 9}
    with anthropic.Anthropic(base_url=url, api_key="sk-secret") as client:
        plain = client.messages.create(**message)
        with client.messages.stream(**message) as stream:
            return [plain.to_json(), [*stream.text_stream]]


PROGRAMS: dict[str, Callable[[str], list[Any]]] = {
    "httpx": blocking(httpx),
    "httpx2": blocking(httpx2),
    "httpx-async": awaiting(httpx),
    "httpx2-async": awaiting(httpx2),
    "requests": with_requests,
    "urllib3": with_urllib3,
    "openai": with_openai,
    "anthropic": with_anthropic,
}


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_replay_gives_what_the_server_gave_chunk_by_chunk(
    server: ModelServer, storage: str, program: Callable[[str], list[Any]], compress: bool
) -> None:
    server.compress = compress
    with surehold.record("mine", storage=storage) as recording:
        live = program(server.url)
    asked = server.count
    assert recording.live == asked > 1
    with surehold.replay("mine", storage=storage) as recording:
        assert program(server.url) == live
    assert (server.count, recording.replayed, recording.left()) == (asked, asked, [])


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_request_that_was_not_recorded_reaches_no_server(
    server: ModelServer, storage: str, program: Callable[[str], list[Any]]
) -> None:
    with surehold.record("mine", storage=storage):
        pass
    with (
        pytest.raises(ShapeError, match=r"(?s)fits no recorded call .*\n.*nothing was recorded"),
        surehold.replay("mine", storage=storage),
    ):
        program(server.url)
    assert server.count == 0


def test_a_client_that_hides_every_exception_hides_no_divergence(
    server: ModelServer, storage: str
) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
        with surehold.record("mine", storage=storage):
            client.chat.completions.create(**ask("one"))
        with (
            pytest.raises(ShapeError) as failed,
            surehold.replay("mine", storage=storage),
            contextlib.suppress(BaseException),
        ):
            client.chat.completions.create(**ask("two"))
    told = str(failed.value)
    assert 'recorded  "one"' in told and 'now       "two"' in told
    assert "body.messages[0].content" in told
    assert server.count == 1


def test_blocks_of_two_tasks_record_each_its_own_calls(server: ModelServer, storage: str) -> None:
    async def task(name: str, ready: asyncio.Barrier, keep: bool) -> str:
        block: Any = surehold.record if keep else surehold.replay
        with block(name, storage=storage):
            await ready.wait()
            async with httpx.AsyncClient() as client:
                first = await client.post(server.url + CHAT, json=ask(f"{name} 1"))
            body = ask(f"{name} 2")
            second = await asyncio.to_thread(httpx.post, server.url + CHAT, json=body)
            await ready.wait()
        return first.text + second.text

    async def program(keep: bool) -> list[str]:
        ready = asyncio.Barrier(3)
        return await asyncio.gather(*(task(f"run-{n}", ready, keep) for n in range(3)))

    live = asyncio.run(program(True))
    assert asyncio.run(program(False)) == live
    assert server.count == 6


def test_equal_requests_get_their_answers_in_order(server: ModelServer, storage: str) -> None:
    def program() -> list[str]:
        with httpx.Client() as client:
            return [client.post(server.url + CHAT, json=ask("same")).text for _ in range(3)]

    with surehold.record("mine", storage=storage):
        live = program()
    assert len({*live}) == 3
    with surehold.replay("mine", storage=storage):
        assert program() == live


def test_refusals_are_not_recorded_and_retries_take_their_place(
    server: ModelServer, storage: str
) -> None:
    server.refuse = [429, 503]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=3) as client:
        with surehold.record("mine", storage=storage) as recording:
            live = client.chat.completions.create(**ask("one")).to_json()
        assert (server.count, recording.live) == (3, 1)
        with surehold.replay("mine", storage=storage):
            assert client.chat.completions.create(**ask("one")).to_json() == live
    assert server.count == 3


def test_a_stream_that_was_left_early_ends_there_again(server: ModelServer, storage: str) -> None:
    def program(most: int) -> list[str]:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
            stream = client.chat.completions.create(**ask("one"), stream=True)
            found = []
            for event in stream:
                found.append(event.to_json())
                if len(found) == most:
                    break
            stream.close()
            return found

    with surehold.record("mine", storage=storage):
        live = program(1)
    with surehold.replay("mine", storage=storage):
        assert program(1) == live
    with (
        pytest.raises(ShapeError, match="reads further"),
        surehold.replay("mine", storage=storage),
    ):
        program(99)
    assert server.count == 1


def streamed_by(library: Any) -> Callable[[str], list[bytes]]:
    def read(url: str) -> list[bytes]:
        with library.stream("POST", url + CHAT, json=ask("one", stream=True)) as streamed:
            return [*streamed.iter_raw()]

    return read


def streamed_by_requests(url: str) -> list[bytes]:
    body = ask("one", stream=True)
    with requests.post(url + CHAT, json=body, stream=True, timeout=1) as streamed:
        return [*streamed.iter_content(chunk_size=None)]


STREAMED = {
    "httpx": streamed_by(httpx),
    "httpx2": streamed_by(httpx2),
    "requests": streamed_by_requests,
}


@pytest.mark.parametrize("break_off", ["cut", "stall"])
@pytest.mark.parametrize("read", STREAMED.values(), ids=STREAMED)
def test_a_stream_that_breaks_off_is_not_recorded_and_its_retry_is(
    server: ModelServer,
    storage: str,
    read: Callable[[str], list[bytes]],
    break_off: str,
) -> None:
    def broken() -> None:
        if break_off == "stall" and read is streamed_by_requests:
            time.sleep(3)
        raise ConnectionError("the server fails")

    def program() -> list[bytes]:
        for _ in range(9):
            with contextlib.suppress(httpx.HTTPError, httpx2.HTTPError, requests.RequestException):
                return read(server.url)
        return []

    server.kill[1, "midway"] = broken
    with surehold.record("mine", storage=storage) as recording:
        live = program()
    asked = server.count
    assert recording.live == 1 < asked and b"[DONE]" in b"".join(live)
    with surehold.replay("mine", storage=storage):
        assert program() == live
    assert server.count == asked


def test_what_is_no_model_call_passes_unless_it_is_named(server: ModelServer, storage: str) -> None:
    def program() -> tuple[str, str]:
        with httpx.Client() as client:
            plain = client.get(f"{server.url}/search?q=kelp&key=SECRET").text
            return plain, client.post(f"{server.url}/v1/traces", json={"input": 1}).text

    with surehold.record("mine", storage=storage, urls=[f"{server.url}/search*"]) as recording:
        live = program()
    assert (recording.live, len(server.other)) == (1, 2)
    with surehold.replay("mine", storage=storage, urls=[f"{server.url}/search*"]):
        again = program()
    with (
        pytest.raises(UsageError, match=r"urls is a text"),
        surehold.record("other", storage=storage, urls="https://search.example/*"),
    ):
        pass
    assert again[0] == live[0] and again[1] != live[1]
    assert len(server.other) == 3


def test_no_credential_or_cookie_is_stored(server: ModelServer, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    with surehold.record("mine", storage=f"sqlite:///{folder}/runs.db"):
        for program in PROGRAMS.values():
            program(server.url)
        with httpx.Client(headers={"Authorization": "Bearer SECRET-1", "Cookie": "a=SECRET"}) as c:
            c.post(
                f"{server.url}{CHAT}?key=SECRET-2",
                json={**ask("x"), "api_key": "SECRET-3"},
                headers={"x-api-key": "SECRET"},
            )
    kept = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"sk-secret" not in kept and b"SECRET" not in kept


def test_a_client_library_that_cannot_be_patched_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    finder._patch("httpx", object())
    assert "cannot record the calls of httpx" in capsys.readouterr().err
