"""Planted divergences: each is reported with the difference that was planted."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.model_server import ModelServer, model_server

import surehold
from surehold.errors import ShapeError
from surehold.integrations.recorder import recording as recording_module
from surehold.integrations.recorder.inside import Asked, HttpAnswer
from surehold.integrations.recorder.recording import Recording
from surehold.integrations.recorder.shelves import FileShelf

BODY: dict[str, Any] = {
    "model": "gpt-4o",
    "temperature": 0.5,
    "messages": [
        {"role": "system", "content": "Now: 2026-11-18T20:00:01Z, run 0b64e6a1"},
        {"role": "user", "content": "id 6d0c3b5e-1d9a-4b7c-9f7e-2f3f1b1a9c11 in /tmp/abc/x"},
    ],
    "tools": [{"type": "function", "function": {"name": "pay", "parameters": {}}}],
}
MESSAGES = "body.messages"


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json.dumps(BODY))
    change(body)
    return body


def said(at: int, old: str, new: str) -> Callable[[dict[str, Any]], Any]:
    def change(body: dict[str, Any]) -> None:
        message = body["messages"][at]
        message["content"] = message["content"].replace(old, new)

    return change


PLANTED: dict[str, tuple[Callable[[dict[str, Any]], Any], list[str]]] = {
    "a time": (said(0, "20:00:01", "20:00:09"), [f"{MESSAGES}[0].content", "only a time"]),
    "an id": (said(1, "6d0c3b5e", "00000000"), [f"{MESSAGES}[1].content", "only an id"]),
    "a temporary name": (said(1, "abc", "def"), ["the name of a temporary file"]),
    "another text": (said(0, "run", "walk"), [f"{MESSAGES}[0].content", "walk"]),
    "another model": (lambda body: body.update(model="gpt-5"), ["body.model", '"gpt-5"']),
    "another number": (lambda body: body.update(temperature=1), ["body.temperature", "0.5"]),
    "a new key": (lambda body: body.update(seed=7), ["body.seed", "(absent)"]),
    "a missing key": (lambda body: body.pop("temperature"), ["body.temperature", "(absent)"]),
    "another tool": (
        lambda body: body["tools"][0]["function"].update(name="refund"),
        ["body.tools[0].function.name", '"refund"'],
    ),
    "a longer conversation": (
        lambda body: body["messages"].append({"role": "user", "content": "more"}),
        [f"{MESSAGES}[2]", "keeps its own state"],
    ),
}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


def ask(server: ModelServer, body: Any) -> str:
    return httpx.post(f"{server.url}/v1/chat/completions", json=body).text


def begin(server: ModelServer, storage: str, *bodies: Any) -> list[str]:
    """Record calls of a run whose program then fails."""
    found = []
    with pytest.raises(ZeroDivisionError), surehold.record("mine", storage=storage):
        found += [ask(server, body) for body in bodies]
        raise ZeroDivisionError
    return found


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_divergence_is_shown(server: ModelServer, storage: str, planted: str) -> None:
    change, told = PLANTED[planted]
    begin(server, storage, BODY)
    with pytest.raises(ShapeError) as failed, surehold.record("mine", storage=storage):
        ask(server, changed(change))
    for part in told:
        assert part in str(failed.value)
    assert server.count == 1


@pytest.mark.parametrize("planted", ["a time", "an id", "a temporary name"])
def test_a_loose_match_overlooks_it(server: ModelServer, storage: str, planted: str) -> None:
    (first,) = begin(server, storage, BODY)
    with surehold.record("mine", storage=storage, loose=True) as recording:
        assert ask(server, changed(PLANTED[planted][0])) == first
    assert (server.count, recording.loosely) == (1, 1)


def test_a_divergence_may_continue_live(server: ModelServer, storage: str) -> None:
    begin(server, storage, BODY)
    with surehold.record("mine", storage=storage, on_divergence="live") as recording:
        ask(server, {**BODY, "model": "other"})
    assert server.count == 2 and "body.model" in recording.diverged


def test_ids_that_a_framework_makes_anew_do_not_diverge(server: ModelServer, storage: str) -> None:
    def body(id: str) -> Any:
        told = {"id": f"pyd_ai_{id * 32}", "again": f"pyd_ai_{id * 32}"}
        return {"model": "m", "messages": [told]}

    (first,) = begin(server, storage, body("a"))
    with surehold.record("mine", storage=storage):
        assert ask(server, body("b")) == first
    assert server.count == 1


def test_concurrent_calls_that_end_in_any_order_are_given_back(
    server: ModelServer, storage: str
) -> None:
    """Their order of completion is given back too, so what follows from it is the same."""
    chance = random.Random(3)
    server.delay = lambda: chance.random() * 0.1

    async def program() -> list[str]:
        done: list[str] = []
        async with httpx.AsyncClient() as client:

            async def one(n: int) -> None:
                body = {"model": "m", "messages": [n]}
                answer = await client.post(f"{server.url}/v1/chat/completions", json=body)
                done.append(answer.json()["id"])

            await asyncio.gather(*(one(n) for n in range(12)))
        return done

    async def recorded() -> list[str]:
        with surehold.record("mine", storage=storage):
            return await program()

    async def replayed() -> list[str]:
        with surehold.replay("mine", storage=storage):
            return await program()

    live = asyncio.run(recorded())
    assert live != sorted(live)
    assert asyncio.run(replayed()) == live
    assert server.count == 12


async def test_a_request_that_is_cancelled_before_its_turn_leaves_its_answer_to_its_retry(
    server: ModelServer, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_module, "_HOLD", 600.0)
    url = f"{server.url}/v1/chat/completions"
    async with httpx.AsyncClient() as client:

        async def one(text: str) -> str:
            return (await client.post(url, json={"model": "m", "messages": [text]})).text

        with surehold.record("mine", storage=storage):
            live = [await one("first"), await one("second")]
        with surehold.replay("mine", storage=storage) as recording:
            early = asyncio.create_task(one("second"))
            while not recording.replayed:
                await asyncio.sleep(0)
            early.cancel()
            with pytest.raises(asyncio.CancelledError):
                await early
            assert (recording.replayed, len(recording.left())) == (0, 1)
            assert [await one("first"), await one("second")] == live
    assert (server.count, recording.replayed) == (2, 2)


async def test_a_request_that_was_cancelled_is_cancelled_again_by_a_replay(
    server: ModelServer, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two answers wins; the other request is cancelled, and has no recording."""
    monkeypatch.setattr(recording_module, "_UNANSWERED", 600.0)
    over = threading.Event()
    server.kill[1, "asked"] = over.wait
    url = f"{server.url}/v1/chat/completions"

    async def race() -> list[str]:
        async with httpx.AsyncClient() as client:

            async def one(text: str) -> str:
                return (await client.post(url, json={"model": "m", "messages": [text]})).text

            slow = asyncio.create_task(one("slow"))
            while not server.count:
                await asyncio.sleep(0.001)
            won = await one("fast")
            slow.cancel()
            return [won, await one("after")]

    with surehold.record("mine", storage=storage) as recording:
        live = await race()
    over.set()
    assert (server.count, recording.live) == (3, 2)
    with surehold.replay("mine", storage=storage):
        assert await race() == live
    assert server.count == 3


def test_a_request_that_was_refused_is_told_apart_offline(
    server: ModelServer, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_module, "_UNANSWERED", 0.01)
    server.refuse = [400]
    with surehold.record("mine", storage=storage):
        ask(server, {**BODY, "model": "none"})
        ask(server, BODY)
    with (
        pytest.raises(ShapeError, match="had no answer that could be kept"),
        surehold.replay("mine", storage=storage),
    ):
        ask(server, {**BODY, "model": "none"})


def test_a_call_that_was_in_flight_is_no_divergence(server: ModelServer, storage: str) -> None:
    """Two calls at once, of which the second alone was recorded when the program ended."""
    server.delay = lambda: 0.4 if server.count % 2 else 0.0

    async def program(cut: bool) -> None:
        async with httpx.AsyncClient() as client:

            async def one(n: int) -> None:
                body = {"model": "m", "messages": [n]}
                await client.post(f"{server.url}/v1/chat/completions", json=body)

            slow = asyncio.create_task(one(1))
            await asyncio.sleep(0.1)
            await one(2)
            if cut:
                slow.cancel()
                raise ZeroDivisionError
            await slow

    with pytest.raises(ZeroDivisionError), surehold.record("mine", storage=storage):
        asyncio.run(program(True))
    with surehold.record("mine", storage=storage) as recording:
        asyncio.run(program(False))
    assert (server.count, recording.replayed, recording.live) == (3, 1, 1)


def test_a_call_in_flight_waits_for_recorded_calls_of_a_slower_task(
    server: ModelServer, storage: str
) -> None:
    """The process died within a request whose task is faster than another one when replayed."""
    at_work: list[Any] = []

    def text(body: dict[str, Any], number: int) -> str:
        while body["messages"] == ["b0"] and at_work and at_work[0].live < 2:
            time.sleep(0.01)  # its answer comes after that of a1
        return f"answer {number}"

    server.text = text

    async def program(tool: float, cut: bool) -> None:
        async with httpx.AsyncClient(timeout=60) as client:

            async def one(name: str) -> None:
                body = {"model": "m", "messages": [name]}
                await client.post(f"{server.url}/v1/chat/completions", json=body)

            async def slow() -> None:
                await one("a0")
                await asyncio.sleep(tool)
                await one("a1")

            async def fast() -> None:
                await one("b0")
                if cut:
                    raise ZeroDivisionError
                await one("b1")

            await asyncio.gather(slow(), fast())

    with (
        pytest.raises(ZeroDivisionError),
        surehold.record("mine", storage=storage) as recording,
    ):
        at_work.append(recording)
        asyncio.run(program(0, True))
    assert recording.live == 3
    at_work.clear()
    with surehold.record("mine", storage=storage) as recording:
        asyncio.run(program(3, False))
    assert (server.count, recording.replayed, recording.live) == (4, 3, 1)


def test_an_encrypted_recording_holds_no_text(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREHOLD_ENCRYPTION_KEY", "8" * 64)
    folder = tmp_path / "store"
    folder.mkdir()
    storage = f"sqlite:///{folder}/runs.db"
    with surehold.record("mine", storage=storage):
        first = ask(server, {"model": "m", "messages": ["kelp-and-dulse"]})
    with surehold.replay("mine", storage=storage):
        assert ask(server, {"model": "m", "messages": ["kelp-and-dulse"]}) == first
    kept = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"kelp-and-dulse" not in kept and b"answer 1" not in kept


@pytest.mark.parametrize("late", [False, True])
def test_an_answer_that_comes_after_the_program_has_ended_is_not_kept(
    late: bool, tmp_path: Path
) -> None:
    """A second start asks anew for what was in flight, and gets one answer for it."""
    url = "https://api.openai.com/v1/chat/completions"
    shelf = FileShelf(tmp_path / "calls.jsonl")
    recording = Recording(shelf)
    claimed = recording.claim(Asked("POST", url, [], json.dumps(BODY).encode()))
    assert claimed.kind == "live"
    if late:
        recording.close()
    recording.commit(claimed.id, HttpAnswer(200, "OK", [], [b"{}"]))
    assert shelf.save() is not late
