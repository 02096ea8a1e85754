"""A graph that loops, fails half way, and resumes at the failed node."""

from __future__ import annotations

import asyncio
import tempfile

from surehold import CheckpointConfig, GraphConfig, State, StateGraph
from surehold.errors import StepError

network = {"up": False}


async def fetch(state: State) -> State:
    page = len(state["pages"]) + 1
    if page == 3 and not network["up"]:
        raise ConnectionError("no network")
    print("fetching page", page)
    return state.append("pages", f"page {page}")


def write(state: State) -> dict[str, str]:
    return {"report": f"{len(state['pages'])} pages about {state['topic']}"}


def build(store: str) -> StateGraph:
    graph = StateGraph(
        GraphConfig(name="report", checkpoint=CheckpointConfig(store=store, interval=1))
    )
    graph.add_node("fetch", fetch)
    graph.add_node("write", write)
    graph.add_edge("fetch", "write", lambda state: len(state["pages"]) == 4, name="have all")
    graph.add_edge("fetch", "fetch", name="one more")
    graph.set_entry_point("fetch")
    graph.set_exit_point("write")
    return graph


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with build(f"sqlite:///{directory}/runs.db") as graph:
            state = State.new({"topic": "kelp", "pages": []}, run_id="monday")
            try:
                await graph.execute(state)
            except StepError as error:
                print(error)
            print(graph.explain_resume("monday"))
            network["up"] = True
            final = await graph.resume("monday")
            print(final["report"], f"in {final.step} steps")


if __name__ == "__main__":
    asyncio.run(main())
