"""Long-term memory and cached results of graphs on every medium."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp
from langgraph.types import CachePolicy

from surehold.errors import UsageError
from surehold.integrations.langgraph import SureholdCache, SureholdSaver, SureholdStore

ANN, BOB = ("users", "ann"), ("users", "bob")


class State(TypedDict):
    text: str


@dataclasses.dataclass
class Plan:
    steps: tuple[str, ...]


@pytest.fixture
def store(address: str) -> Iterator[SureholdStore]:
    with SureholdStore(address) as store:
        yield store


def test_items_are_put_read_and_deleted(store: SureholdStore) -> None:
    store.put(ANN, "diet", {"likes": ["kelp"]})
    first = store.get(ANN, "diet")
    assert first is not None and first.value == {"likes": ["kelp"]}
    assert (first.namespace, first.key) == (ANN, "diet")
    store.put(ANN, "diet", {"likes": []})
    second = store.get(ANN, "diet")
    assert second is not None and second.value == {"likes": []}
    assert second.created_at == first.created_at < second.updated_at
    store.delete(ANN, "diet")
    store.delete(ANN, "never there")
    assert store.get(ANN, "diet") is None
    assert store.get(("nobody",), "diet") is None


def test_items_are_searched_by_prefix_and_filter(store: SureholdStore) -> None:
    for n in range(5):
        store.put(ANN, f"note{n}", {"n": n, "kind": {"of": "even" if n % 2 == 0 else "odd"}})
    store.put(BOB, "note0", {"n": 0})
    store.put(("users%2Fann", "a/b"), "items", {"n": 0})
    assert len(store.search(("users",))) == 6
    assert [one.key for one in store.search(ANN, filter={"n": {"$gte": 2, "$lt": 4}})] == [
        "note2",
        "note3",
    ]
    assert [one.key for one in store.search(ANN, filter={"kind": {"of": "odd"}})] == [
        "note1",
        "note3",
    ]
    assert store.search(BOB, filter={"missing": {"$gt": 1}}) == []
    assert [one.key for one in store.search(ANN, limit=2, offset=3)] == ["note3", "note4"]
    assert store.search(("users%2Fann",))[0].namespace == ("users%2Fann", "a/b")
    with pytest.raises(UsageError, match="operator '\\$near'"):
        store.search(ANN, filter={"n": {"$near": 1}})


def test_a_search_by_meaning_is_refused(store: SureholdStore) -> None:
    with pytest.raises(UsageError, match="not by meaning"):
        store.search(ANN, query="what does Ann like?")


def test_namespaces_are_listed(store: SureholdStore) -> None:
    for namespace in (ANN, BOB, ("docs", "x", "v1"), ("docs", "y", "v1")):
        store.put(namespace, "k", {"v": 1})
    store.delete(BOB, "k")
    assert store.list_namespaces() == [("docs", "x", "v1"), ("docs", "y", "v1"), ANN]
    assert store.list_namespaces(prefix=("docs", "*"), max_depth=2) == [
        ("docs", "x"),
        ("docs", "y"),
    ]
    assert store.list_namespaces(suffix=("v1",), limit=1, offset=1) == [("docs", "y", "v1")]


def test_a_batch_reads_before_it_puts(store: SureholdStore) -> None:
    ops: Any = [
        PutOp(ANN, "a", {"n": 1}),
        GetOp(ANN, "a"),
        PutOp(ANN, "a", {"n": 2}),
        PutOp(ANN, "b", {"n": 3}),
        SearchOp(ANN),
        ListNamespacesOp(),
    ]
    assert store.batch(ops) == [None, None, None, None, [], []]
    assert {one.key: one.value for one in store.search(ANN)} == {"a": {"n": 2}, "b": {"n": 3}}
    headers = store.manager.list_checkpoints("langgraph-store/users/ann")
    assert len(headers) == 1  # one commit


def test_items_end_and_are_refreshed_by_reads(
    store: SureholdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr("surehold.integrations.langgraph.namespaces.time.time", lambda: now[0])
    store.put(ANN, "short", {"n": 1}, ttl=1)
    store.put(ANN, "long", {"n": 2})
    now[0] += 50
    assert store.get(ANN, "short", refresh_ttl=True) is not None
    now[0] += 50
    assert len(store.search(ANN, refresh_ttl=False)) == 2
    now[0] += 50
    assert store.get(ANN, "short") is None
    assert [one.key for one in store.search(ANN)] == ["long"]
    store.sweep_ttl()
    newest = store.manager.resume_from_latest("langgraph-store/users/ann")
    assert newest is not None and [*newest] == ["items", "item:long"]


async def test_many_writers_lose_nothing(address: str) -> None:
    with SureholdStore(address) as store:
        await asyncio.gather(*(store.aput(ANN, f"a{n}", {"n": n}) for n in range(20)))
        threads = [
            threading.Thread(target=store.put, args=(ANN, f"t{n}", {"n": n})) for n in range(5)
        ]
        for one in threads:
            one.start()
        for one in threads:
            await asyncio.to_thread(one.join)
        assert len(await store.asearch(ANN, limit=100)) == 25


def test_another_process_finds_the_items(address: str) -> None:
    if address == "memory://":
        pytest.skip("memory ends with its process")
    with SureholdStore(address) as store:
        store.put(ANN, "plan", {"plan": Plan(("a", "b"))})
    with SureholdStore(address) as store:
        found = store.get(ANN, "plan")
        assert found is not None and found.value == {"plan": Plan(("a", "b"))}


def test_a_node_finds_the_store(address: str) -> None:
    def remember(state: State, runtime: Runtime) -> State:
        assert runtime.store is not None
        runtime.store.put(ANN, "said", {"text": state["text"]})
        return state

    with SureholdSaver(address) as saver, SureholdStore(saver.manager) as store:
        builder = StateGraph(State).add_node("remember", remember).add_edge(START, "remember")
        thread: Any = {"configurable": {"thread_id": "t"}}
        builder.compile(saver, store=store).invoke({"text": "hi"}, thread)
        found = store.get(ANN, "said")
        assert found is not None and found.value == {"text": "hi"}


def test_cached_results_are_returned_until_they_end(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr("surehold.integrations.langgraph.namespaces.time.time", lambda: now[0])
    with SureholdCache(address) as cache:
        cache.set({(("a",), "1"): (Plan(("x",)), 60), (("b", "c"), "2"): ([("ch", {1})], None)})
        assert cache.get([(("a",), "1"), (("a",), "none"), (("b", "c"), "2")]) == {
            (("a",), "1"): Plan(("x",)),
            (("b", "c"), "2"): [("ch", {1})],
        }
        now[0] += 61
        assert list(cache.get([(("a",), "1"), (("b", "c"), "2")])) == [(("b", "c"), "2")]
        cache.clear([("b", "c"), ("never",)])
        assert cache.get([(("b", "c"), "2")]) == {}
        cache.set({(("a",), "1"): (1, None)})
        cache.clear()
        assert cache.get([(("a",), "1")]) == {}


async def test_a_node_is_cached_in_the_next_process(address: str) -> None:
    if address == "memory://":
        pytest.skip("memory ends with its process")
    calls = []

    async def think(state: State) -> State:
        calls.append(state["text"])
        return {"text": state["text"] + "!"}

    for _ in range(2):
        with SureholdCache(address) as cache:
            builder = StateGraph(State).add_node("think", think, cache_policy=CachePolicy(ttl=60))
            graph = builder.add_edge(START, "think").compile(cache=cache)
            assert await graph.ainvoke({"text": "hm"}) == {"text": "hm!"}
    assert calls == ["hm"]
