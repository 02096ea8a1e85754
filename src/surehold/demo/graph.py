"""The graph of the runs that `surehold demo` leaves: a planned, approved report.

`surehold resume` finds it here, because its runs say so. What a model would answer is made up.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from surehold.core.state import State
from surehold.doors.graph import CheckpointConfig, GraphConfig, StateGraph
from surehold.engine.managers import AsyncCheckpointManager
from surehold.engine.runs import interrupt
from surehold.engine.runs.effects import effect
from surehold.storage.memory import MemoryStorage

OFFLINE = ContextVar("OFFLINE", default=False)
"""True while the search cannot be reached; a resume, later and elsewhere, reaches it."""
_FACTS = {
    "kelp": ["grows half a metre a day", "is a brown alga", "shelters sea otters"],
    "lichen": ["is a fungus and an alga", "lives on bare rock", "grows a millimetre a year"],
}


async def plan(state: State) -> dict[str, Any]:
    """Decide on the questions."""
    topic = state["topic"]
    questions = [f"what is {topic}?", f"where does {topic} grow?", f"who needs {topic}?"]
    plan = await _asked("plan", f"plan a report on {topic}", "\n".join(questions), 0.004)
    return {"questions": plan.splitlines(), "messages": [_message("assistant", plan)]}


async def search(state: State) -> State:
    """Answer the next question."""
    at = len(state.get("facts", []))
    if OFFLINE.get():
        raise ConnectionError("search.example is not reachable")
    fact = _FACTS.get(state["topic"], ["is not well known"] * 3)[at]
    found = await _asked("search", state["questions"][at], f"{state['topic']} {fact}", 0.002)
    state = state.append("messages", _message("tool", found))
    return state.set("facts", [*state.get("facts", []), found])


async def write(state: State) -> dict[str, Any]:
    """Write the report."""
    text = ". ".join(state["facts"]).capitalize()
    if state.get("audience") == "children":
        text = f"Did you know? {text}!"
    report = await _asked("write", "write it", text, 0.011)
    return {"report": report}


async def approve(state: State) -> dict[str, Any]:
    """Wait for a person, unless the report has an audience."""
    if state.get("audience"):
        return {"approved": True}
    return {"approved": await interrupt(f"Publish the report on {state['topic']}?", schema=bool)}


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


async def _asked(name: str, prompt: str, answer: str, dollars: float) -> str:
    """The answer of a model, recorded as a call to one."""

    async def call(prompt: str) -> str:
        return answer

    used = {"tokens": 40 * (len(prompt) + len(answer)) // 10, "dollars": dollars}
    said: str = await effect(name, call, prompt, in_doubt="retry", usage=lambda _: used)
    return said


graph = StateGraph(
    GraphConfig(name="report", checkpoint=CheckpointConfig(interval=1, preserve=True)),
    manager=AsyncCheckpointManager(MemoryStorage()),
)
graph.add_node("plan", plan)
graph.add_node("search", search)
graph.add_node("write", write)
graph.add_node("approve", approve)
graph.add_edge("plan", "search")
graph.add_edge("search", "search", lambda state: len(state["facts"]) < 3, name="more questions")
graph.add_edge("search", "write")
graph.add_edge("write", "approve")
graph.set_entry_point("plan")
graph.set_exit_point("approve")
