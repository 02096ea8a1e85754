"""A graph whose node charges, and is killed after the charge or in it.

`python FILE DATABASE LOG blocking|awaited after|inside|none`
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TypedDict

from langgraph.graph import START, StateGraph

import surehold
from surehold.integrations.langgraph import SureholdSaver


class State(TypedDict):
    paid: int


def main(database: str, log: str, side: str, dies: str) -> None:
    def charged(amount: int) -> int:
        with Path(log).open("a") as file:
            file.write(f"{amount}\n")
        if dies == "inside":
            os.kill(os.getpid(), signal.SIGKILL)
        return amount

    @surehold.step(in_doubt="ask")
    def charge(amount: int) -> int:
        return charged(amount)

    async def charge_awaited(amount: int) -> int:
        return charged(amount)

    def paid(amount: int) -> State:
        if dies == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"paid": amount}

    def pay(state: State) -> State:
        return paid(charge(30))

    async def pay_awaited(state: State) -> State:
        return paid(await surehold.effect("charge", charge_awaited, 30))

    thread = {"configurable": {"thread_id": "ann"}}
    with SureholdSaver(f"sqlite:///{database}") as saver:
        builder = StateGraph(State)
        builder.add_node("pay", pay if side == "blocking" else pay_awaited)
        graph = builder.add_edge(START, "pay").compile(checkpointer=saver)
        start = {"paid": 0} if saver.get_tuple(thread) is None else None
        if side == "blocking":
            ended = graph.invoke(start, thread)
        else:
            ended = asyncio.run(graph.ainvoke(start, thread))
        print(ended["paid"])


if __name__ == "__main__":
    main(*sys.argv[1:])
