"""A graph of 60 quick steps that is killed in its 50th.

`python FILE DATABASE LOG blocking|awaited [survive]`
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TypedDict

from langgraph.graph import END, START, StateGraph

from surehold.integrations.langgraph.saver import SureholdSaver

STEPS, FATAL = 60, 50


class State(TypedDict):
    count: int


def main(database: str, log: str, side: str, survive: bool) -> None:
    async def awaited_step(state: State) -> State:
        return step(state)

    def step(state: State) -> State:
        count = state["count"] + 1
        with Path(log).open("a") as file:
            file.write(f"{count}\n")
        if count == FATAL and not survive:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"count": count}

    builder = StateGraph(State)
    builder.add_node("step", step if side == "blocking" else awaited_step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: END if state["count"] >= STEPS else "step")
    with SureholdSaver(f"sqlite:///{database}") as saver:
        graph = builder.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": "t"}, "recursion_limit": 100}
        start = None if survive else {"count": 0}
        if side == "blocking":
            ended = graph.invoke(start, config, durability="async")
        else:
            ended = asyncio.run(graph.ainvoke(start, config, durability="async"))
        print(ended["count"])


if __name__ == "__main__":
    main(*sys.argv[1:4], "survive" in sys.argv)
