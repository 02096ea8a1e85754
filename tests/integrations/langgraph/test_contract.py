"""What a third-party checkpointer of LangGraph must get right and no suite of its own checks."""

from __future__ import annotations

import copy
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from tests.integrations.langgraph.conftest import Side, id_of, thread

from surehold.integrations.langgraph.saver import SureholdSaver


async def test_t1_versions_of_two_branches_never_meet(side: Side) -> None:
    root = await side.step(thread(), {"n": 0})
    versions = [side.saver.get_next_version("000000000007.aa", None) for _ in range(2)]
    assert versions[0] != versions[1] and min(versions) > "000000000007.aa"
    left = await side.step(root, {"n": "left"}, versions={"n": 2})
    right = await side.step(root, {"n": "right"}, versions={"n": 2})
    assert await side.values(left) == {"n": "left"}
    assert await side.values(right) == {"n": "right"}
    for branch in (left, right):
        found = await side("get_tuple", branch)
        assert id_of(found.parent_config) == id_of(root)


@pytest.mark.parametrize("version", [1, 1.5, "00001.0.25", None])
async def test_t2_versions_may_be_of_any_type(side: Side, version: Any) -> None:
    following = side.saver.get_next_version(version, None)
    assert isinstance(following, str)
    config = await side.step(thread(), {"n": 0}, versions={"n": version or 7})
    found = await side("get_tuple", config)
    kept = found.checkpoint["channel_versions"]["n"]
    assert (kept, type(kept)) == (version or 7, type(version or 7))


async def test_t3_writes_may_come_before_their_checkpoint(side: Side) -> None:
    early = thread(id="1ef00000-0000-6000-8000-000000000001")
    await side("put_writes", early, [("n", 1)], "task")
    assert await side("get_tuple", early) is None
    await side.step(thread(), {"n": 0}, id=id_of(early))
    found = await side("get_tuple", thread())
    assert found.pending_writes == [("task", "n", 1)]


def test_t4_threads_of_one_run_put_and_write_at_once(address: str) -> None:
    with SureholdSaver(address) as saver, ThreadPoolExecutor(8) as pool:
        root = _put(saver, thread(), {"n": 0})
        jobs = [pool.submit(_put, saver, thread(ns=f"sub:{n}"), {"n": n}) for n in range(20)]
        jobs += [pool.submit(saver.put_writes, root, [("n", n)], f"task-{n:02}") for n in range(20)]
        for job in jobs:
            job.result()
        assert [write[2] for write in saver.get_tuple(root).pending_writes] == list(range(20))
        for n in range(20):
            found = saver.get_tuple(thread(ns=f"sub:{n}"))
            assert found is not None and found.checkpoint["channel_values"] == {"n": n}
        assert all(saver.manager.verify("t"))


async def test_t5_first_ordinary_and_last_special_write_count(side: Side) -> None:
    config = await side.step(thread(), {"n": 0})
    await side("put_writes", config, [("n", "first"), ("__interrupt__", "old")], "task")
    await side("put_writes", config, [("n", "second"), ("__interrupt__", "new")], "task")
    writes = (await side("get_tuple", config)).pending_writes
    assert sorted(writes) == [("task", "__interrupt__", "new"), ("task", "n", "first")]


async def test_t6_putting_an_id_again_supersedes_it(side: Side) -> None:
    root = await side.step(thread(), {"n": 0})
    first = await side.step(root, {"n": 1})
    child = await side.step(first, {"n": 2})
    again = await side.step(root, {"n": "again"}, id=id_of(first))
    assert await side.values(again) == {"n": "again"}
    assert await side.values(child) == {"n": 2}
    listed = await side("list", thread())
    assert [id_of(one.config) for one in listed] == [id_of(child), id_of(first), id_of(root)]
    assert all(side.saver.manager.verify("t"))


async def test_t7_writes_are_ordered_by_path_then_task_then_place(side: Side) -> None:
    config = await side.step(thread(), {"n": 0})
    await side("put_writes", config, [("n", "b0"), ("n", "b1")], "task-1", "path-b")
    await side("put_writes", config, [("n", "a")], "task-2", "path-a")
    await side("put_writes", config, [("n", "none")], "task-3")
    writes = (await side("get_tuple", config)).pending_writes
    assert [write[2] for write in writes] == ["none", "a", "b0", "b1"]


def test_t8_put_writes_takes_a_task_path() -> None:
    for method in (SureholdSaver.put_writes, SureholdSaver.aput_writes):
        assert "task_path" in inspect.signature(method).parameters


async def test_t9_the_serializer_is_the_one_of_now_and_copies_share_all(side: Side) -> None:
    clone = copy.copy(side.saver)
    clone.serde = _Shouting()
    config = await Side(clone, False).step(thread(), {"n": "quiet"})
    assert await Side(clone, False).values(config) == {"n": "QUIET"}
    clone.put_writes(config, [("n", "w")], "task")
    assert clone.get_tuple(config).pending_writes == [("task", "n", "W")]
    plain = await side.step(config, {"n": "quiet"})
    assert await side.values(plain) == {"n": "quiet"}


class _Shouting(JsonPlusSerializer):
    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        found = super().loads_typed(data)
        return found.upper() if isinstance(found, str) else found


async def test_t10_metadata_is_merged_with_the_config_and_kept_whole(side: Side) -> None:
    config = thread()
    config["configurable"] |= {"user": "ann\0e", "__secret": "x", "obj": object()}
    config["metadata"] = {"tenant": 7}
    unknown = {"nested": {"a": [1]}, "exact": (1, 2)}
    made = await side.step(config, {"n": 0}, step=3, run_id="r1", **unknown)
    found = (await side("get_tuple", made)).metadata
    assert found == {
        **{"source": "loop", "step": 3, "parents": {}, "run_id": "r1"},
        **{"user": "anne", "tenant": 7, **unknown},
    }
    assert await side("list", None, filter={"tenant": 7, "exact": (1, 2)})
    assert not await side("list", None, filter={"tenant": 7, "exact": (1, 3)})
    assert await side("list", thread(), filter={"nothing": None})


async def test_t11_list_by_thread_namespace_id_before_and_filter(side: Side) -> None:
    made: dict[tuple[str, str], list[Any]] = {}
    for name in ("t1", "t2"):
        for ns in ("", "sub:1"):
            config = thread(name, ns)
            for step in range(4):
                config = await side.step(config, {"n": step}, step=step)
                made.setdefault((name, ns), []).append(config)
                await side("put_writes", config, [("n", step)], "task")
    assert len(await side("list", None)) == 16
    assert len(await side("list", {"configurable": {"thread_id": "t1"}})) == 8
    ids = [id_of(config) for config in made["t1", ""]]
    listed = await side("list", thread("t1"))
    assert [id_of(one.config) for one in listed] == ids[::-1]
    assert [one.pending_writes for one in listed] == [[("task", "n", n)] for n in (3, 2, 1, 0)]
    before = await side("list", thread("t1"), before=made["t1", ""][2], limit=1)
    assert [id_of(one.config) for one in before] == [ids[1]]
    assert len(await side("list", thread("t2"), filter={"step": 2, "source": "loop"})) == 1
    assert [one.checkpoint["channel_values"]["n"] for one in await side("list", thread("t1"))] == [
        *(3, 2, 1, 0)
    ]
    one = await side("list", made["t2", "sub:1"][1])
    assert [id_of(found.config) for found in one] == [id_of(made["t2", "sub:1"][1])]
    assert await side("list", thread("t1"), limit=0) == []


async def test_t11_the_greatest_id_is_the_newest_whenever_it_was_saved(side: Side) -> None:
    ids = [f"1ef0000{n}-0000-6000-8000-000000000000" for n in range(6)]
    for n in (0, 3, 1, 5, 2, 4):
        await side.step(thread(), {"n": n}, id=ids[n])
    found = await side("get_tuple", thread())
    assert id_of(found.config) == ids[5]
    assert [id_of(one.config) for one in await side("list", thread())] == ids[::-1]
    for n in range(1, 6):
        listed = await side("list", thread(), before=thread(id=ids[n]))
        assert [id_of(one.config) for one in listed] == ids[:n][::-1]
    side.saver.manager.delete_checkpoint(ids[5])
    assert id_of((await side("get_tuple", thread())).config) == ids[4]


async def test_t12_any_checkpoint_is_found_by_its_id(side: Side) -> None:
    config = thread()
    made = []
    for n in range(30):
        config = await side.step(config, {"n": n, "log": list(range(n))})
        made.append(config)
    for n in (0, 7, 29):
        assert await side.values(made[n]) == {"n": n, "log": list(range(n))}
    assert await side("get_tuple", thread(id="1ef")) is None
    assert await side("get_tuple", thread("other", id=id_of(made[3]))) is None
    assert await side("get_tuple", thread(ns="other", id=id_of(made[3]))) is None


async def test_t13_delta_history_replays_the_seeds_own_writes_and_not_the_targets(
    side: Side,
) -> None:
    older = await side.step(thread(), {"d": ["older"]})
    await side("put_writes", older, [("d", "before the seed")], "task")
    config = seed = await side.step(older, {"d": _DeltaSnapshot(["seed"])})
    for n in range(40):
        await side("put_writes", config, [("d", n), ("other", n)], "task")
        config = await side.step(config, {"n": n})
    await side("put_writes", config, [("d", "pending")], "task")
    elsewhere = await side.step(seed, {"n": "another branch"})
    await side("put_writes", elsewhere, [("d", "not on the way")], "task")

    found = await side("get_delta_channel_history", config=config, channels=["d", "none"])
    assert found["d"]["seed"] == _DeltaSnapshot(["seed"])
    assert [write[2] for write in found["d"]["writes"]] == list(range(40))
    assert found["none"] == {"writes": []}
    default: Any = BaseCheckpointSaver.get_delta_channel_history
    assert found == default(side.saver, config=config, channels=["d", "none"])
    assert await side("get_delta_channel_history", config=config, channels=[]) == {}


async def test_t14_a_delta_snapshot_comes_back_as_it_was(side: Side) -> None:
    snapshot = _DeltaSnapshot([HumanMessage("hi", id="1"), AIMessage("ho", id="2")])
    config = await side.step(thread(), {"d": snapshot})
    found = (await side.values(config))["d"]
    assert type(found) is _DeltaSnapshot and found == snapshot


def _put(saver: SureholdSaver, config: Any, values: dict[str, Any]) -> Any:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, 1)
    return saver.put(config, checkpoint, {"source": "loop", "step": 0}, {})
