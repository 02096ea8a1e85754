"""Checkpoints only where needed: by a predicate, after a node, before a node."""

from __future__ import annotations

import asyncio
import tempfile

from surehold import CheckpointConfig, GraphConfig, State, StateGraph


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = CheckpointConfig(
            store=f"file://{directory}",
            preserve=True,
            when=lambda state: state["found"] and state["found"] % 10 == 0,
            nodes=["rank"],
            before=["publish"],
        )
        graph = StateGraph(GraphConfig(name="search", checkpoint=config))
        graph.add_node("search", lambda state: {"found": state["found"] + 1})
        graph.add_node("rank", lambda state: {"best": state["found"]})
        graph.add_node("publish", lambda state: {"published": True})
        graph.add_edge("search", "rank", lambda state: state["found"] >= 25)
        graph.add_edge("search", "search")
        graph.add_edge("rank", "publish")
        graph.set_entry_point("search")
        graph.set_exit_point("publish")
        async with graph:
            await graph.execute(State.new({"found": 0}, run_id="r"))
            for saved in reversed(await graph.manager.list_checkpoints("r")):
                print(f"step {saved.step:2} after {saved.node}: {saved.kind}")


if __name__ == "__main__":
    asyncio.run(main())
