"""The runs that the pictures and the browser tests of the page show."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import msgspec

import surehold
from surehold import Agent, CheckpointManager, Fleet
from surehold.agents.models import Reply, ToolCall
from surehold.agents.tools import tool
from surehold.core.policy import QueueSettings
from surehold.core.records import Owner
from surehold.demo.runs import make_runs
from surehold.executors import set_queue
from surehold.storage.queueing import WorkerInfo
from surehold.testing.scripted import ScriptedModel

LONG = 10_000


def fill(address: str) -> None:
    """Make runs of every kind: the demonstration, a loop of 120 steps, an effect in doubt."""
    with CheckpointManager(address) as manager:
        with surehold.run("crawl", storage=manager) as run:
            for page in range(1, 121):
                run.checkpoint(node="read", pages=page, last=f"page-{page}.html")
        make_runs(manager)
    leave_in_doubt(address)


def fill_frameworks(address: str) -> None:
    """Make a LangGraph thread, a fleet, queued runs, and an agent whose sub-agent asks."""
    make_thread(address)
    make_queue(address)
    asyncio.run(make_fleet(address))
    asyncio.run(make_agents(address))


def make_long(address: str, count: int = LONG) -> None:
    """Make a run of ten thousand checkpoints."""
    with surehold.run("long", storage=address) as run:
        for n in range(count):
            run.checkpoint(node=("fetch", "parse", "store")[n % 3], n=n, url=f"/page/{n}")


def leave_in_doubt(address: str) -> None:
    """Kill a process in the middle of an effect."""
    code = (
        "import os, surehold\n"
        "def charge(): os._exit(9)\n"
        f"with surehold.run('payment-81', storage={address!r}) as run:\n"
        "    run.checkpoint(node='cart', order=81)\n"
        "    run.effect('charge', charge)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)


def make_thread(address: str) -> None:
    """Make a thread of two turns with a tool call."""
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.graph import END, START, StateGraph
    from langgraph.graph.message import add_messages

    from surehold.integrations.langgraph import SureholdSaver

    Chat = TypedDict("Chat", {"messages": Annotated[list[Any], add_messages]})  # noqa: UP013

    def model(state: Any) -> dict[str, Any]:
        if isinstance(state["messages"][-1], HumanMessage):
            call = {"name": "tide_table", "args": {"port": "Brest"}, "id": "call_1"}
            return {"messages": [AIMessage("", tool_calls=[call])]}
        return {"messages": [AIMessage("High tide is at 14:20.")]}

    def tools(state: Any) -> dict[str, Any]:
        return {"messages": [ToolMessage('{"high": "14:20"}', tool_call_id="call_1")]}

    def route(state: Any) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    builder = StateGraph(Chat)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route)
    builder.add_edge("tools", "model")
    graph = builder.compile(checkpointer=SureholdSaver(address))
    thread: Any = {"configurable": {"thread_id": "tides-brest"}}
    for question in ("When is high tide in Brest?", "And tomorrow?"):
        graph.invoke({"messages": [HumanMessage(question)]}, thread)


@surehold.workflow
def nightly(page: int) -> int:
    """The run that is queued."""
    return page


def make_queue(address: str) -> None:
    """Queue runs, one of which is a dead letter, and announce an idle worker."""
    for number in range(1, 5):
        nightly.start(
            number,
            run_id=f"nightly-{number}",
            storage=address,
            queue="nightly",
            priority=number % 2,
            key=f"customer-{number % 3}",
        )
    set_queue("nightly", QueueSettings(concurrency=4, rate=100), storage=address)
    with CheckpointManager(address) as manager:
        storage: Any = manager.storage
        failed = msgspec.structs.replace(
            storage.entry_of("nightly-3"),
            state="dead",
            failures=5,
            reason="ConnectionError: api.example is not reachable",
        )
        storage.put_entries([("nightly-3", failed)])
        idle = WorkerInfo(
            id="idle",
            owner=Owner("node-7", "boot", 4181, "1"),
            queues=("nightly", "mail"),
            targets=("docs.page_runs:nightly@1",),
            concurrency=8,
            since=time.time() - 7200,
        )
        storage.announce(idle, now=time.time(), ttl=86_400)


async def make_fleet(address: str) -> None:
    """Make a fleet that works for two rounds."""

    def manage(messages: Sequence[Any]) -> str:
        if "Judge the work" not in messages[-1]["content"]:
            return "Sales data of May; then a forecast."
        done = sum(one["content"].startswith("To ") for one in messages)
        ledger = {
            "is_request_satisfied": done == 2,
            "is_in_loop": False,
            "is_progress_being_made": True,
            "next_speaker": ["researcher", "analyst"][done % 2],
            "instruction_or_question": ["find the sales of May", "forecast June"][done % 2],
        }
        return json.dumps({key: {"reason": "so", "answer": one} for key, one in ledger.items()})

    async def researcher(instruction: str) -> str:
        """Finds things out."""
        return "Sales rose by 3 % in May."

    async def analyst(instruction: str) -> str:
        """Draws conclusions."""
        return "They will rise by 2 % in June."

    crew = {"researcher": researcher, "analyst": analyst}
    fleet = Fleet(ScriptedModel(manage, price=1.0), crew, storage=address)
    await fleet.run("Analyze the sales data", run_id="sales-fleet")
    await fleet.close()


async def make_agents(address: str) -> None:
    """Make an agent whose sub-agent waits for the approval of a payment."""
    ids = itertools.count()

    def call(name: str, **arguments: Any) -> Reply:
        return Reply(tool_calls=(ToolCall(f"call_{next(ids)}", name, arguments),))

    def turns(*replies: Reply | str) -> Any:
        return lambda messages: replies[sum(one["role"] == "assistant" for one in messages)]

    @tool(approval=True)
    def pay(invoice: str, amount: float) -> str:
        """Pay an invoice."""
        return "paid"

    buyer = Agent(
        "buyer",
        model=ScriptedModel(turns(call("pay", invoice="A-81", amount=120.5), "It is paid.")),
        tools=[pay],
        report=lambda line: None,
    )
    clerk = Agent(
        "clerk",
        model=ScriptedModel(turns(call("buyer", task="pay invoice A-81"), "Done.")),
        tools=[buyer.as_tool(description="Buys things.")],
        storage=address,
        report=lambda line: None,
    )
    await clerk.run("Pay what is due", run_id="clerk-nov")
