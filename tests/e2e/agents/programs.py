"""Programs that know nothing of Surehold: each makes 20 model calls with a real client library."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

CALLS = 20
URL = os.environ.get("MODEL", "")
QUESTIONS = [f"question {n}" for n in range(CALLS)]


def talk(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def openai_chat() -> None:
    import openai

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="sk-secret")
    for n, question in enumerate(QUESTIONS):
        if n % 2:
            stream = client.chat.completions.create(model="m", messages=talk(question), stream=True)
            print([event.to_json() for event in stream])
        else:
            print(client.chat.completions.create(model="m", messages=talk(question)).to_json())


def openai_responses() -> None:
    import openai

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="sk-secret")
    for n, question in enumerate(QUESTIONS):
        if n % 2:
            stream = client.responses.create(model="m", input=question, stream=True)
            print([event.to_json() for event in stream])
        else:
            print(client.responses.create(model="m", input=question).to_json())


def openai_async() -> None:
    import openai

    async def ask() -> None:
        client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="sk-secret")
        for n, question in enumerate(QUESTIONS):
            if n % 2:
                stream = await client.chat.completions.create(
                    model="m", messages=talk(question), stream=True
                )
                print([event.to_json() async for event in stream])
            else:
                made = await client.responses.create(model="m", input=question)
                print(made.to_json())

    asyncio.run(ask())


def anthropic() -> None:
    import anthropic

    client = anthropic.Anthropic(base_url=URL, api_key="sk-secret")
    for n, question in enumerate(QUESTIONS):
        told: Any = {"model": "claude-x", "max_tokens": 99, "messages": talk(question)}
        if n % 2:
            with client.messages.stream(**told) as stream:
                print([*stream.text_stream])
        else:
            print(client.messages.create(**told).to_json())


def langgraph() -> None:
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph

    model = ChatOpenAI(model="m", base_url=f"{URL}/v1", api_key="sk-secret")

    def ask(state: Any) -> Any:
        return {"messages": [*talk(f"turn {len(state['messages'])}")]}

    def answer(state: Any) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    def more(state: Any) -> str:
        return "ask" if len(state["messages"]) < 2 * CALLS else END

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("answer", answer)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "answer")
    graph.add_conditional_edges("answer", more)
    made = graph.compile().invoke({"messages": []}, {"recursion_limit": 4 * CALLS})
    print([one.content for one in made["messages"]])


def openai_agents() -> None:
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="sk-secret")
    model = agents.OpenAIResponsesModel(model="m", openai_client=client)

    @agents.function_tool
    def look_up(name: str) -> str:
        """Look a name up."""
        return f"{name} is an alga"

    agent = agents.Agent(name="kelp", instructions="Look up.", model=model, tools=[look_up])
    print(agents.Runner.run_sync(agent, "Use the tool often.", max_turns=99).final_output)


def pydantic_ai() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="sk-secret")
    agent = Agent(OpenAIChatModel("m", provider=provider))

    @agent.tool_plain
    def look_up(name: str) -> str:
        return f"{name} is an alga"

    print(agent.run_sync("Use the tool often.").output)


def litellm() -> None:
    import litellm

    async def ask() -> None:
        for n, question in enumerate(QUESTIONS):
            told: Any = {
                "model": "openai/m",
                "api_base": f"{URL}/v1",
                "api_key": "sk-secret",
                "messages": talk(question),
            }
            if n % 3 == 2:
                made = await litellm.acompletion(**told)
                print(made.choices[0].message.content)
            elif n % 3 == 1:
                stream = litellm.completion(**told, stream=True)
                print([part.choices[0].delta.content for part in stream])
            else:
                print(litellm.completion(**told).choices[0].message.content)

    asyncio.run(ask())


def smolagents() -> None:
    from smolagents import OpenAIServerModel, Tool, ToolCallingAgent

    class LookUp(Tool):  # type: ignore[misc]
        name = "look_up"
        description = "Looks a name up."
        inputs: Any = {"name": {"type": "string", "description": "The name."}}  # noqa: RUF012
        output_type = "string"

        def forward(self, name: str) -> str:
            return f"{name} is an alga"

    model = OpenAIServerModel(model_id="m", api_base=f"{URL}/v1", api_key="sk-secret")
    agent = ToolCallingAgent(tools=[LookUp()], model=model, verbosity_level=0)
    print(agent.run("Use the tool often.", max_steps=2 * CALLS))


def aiohttp() -> None:
    import aiohttp

    async def ask() -> None:
        async with aiohttp.ClientSession() as session:
            for n, question in enumerate(QUESTIONS):
                body = {"model": "m", "messages": talk(question), "stream": bool(n % 2)}
                async with session.post(f"{URL}/v1/chat/completions", json=body) as answer:
                    chunks = [data async for data, _ in answer.content.iter_chunks()]
                    print(b"".join(chunks).decode())

    asyncio.run(ask())


def gathered() -> None:
    """Fifty calls at once, which end in any order."""
    import httpx

    async def ask() -> None:
        async with httpx.AsyncClient(timeout=60) as client:

            async def one(n: int) -> str:
                body = {"model": "m", "messages": talk(f"number {n}")}
                answer = await client.post(f"{URL}/v1/chat/completions", json=body)
                return str(answer.json()["choices"][0]["message"]["content"])

            print(*await asyncio.gather(*(one(n) for n in range(50))), sep="\n")

    asyncio.run(ask())


PROGRAMS = [
    *(openai_chat, openai_responses, openai_async, anthropic, langgraph, openai_agents),
    *(pydantic_ai, litellm, smolagents, aiohttp),
]
NAMES = [one.__name__ for one in PROGRAMS]

if __name__ == "__main__":
    globals()[sys.argv[1]]()
