"""An agent searches, reads and decides what to search next, until it knows enough.

$ python news_agent.py
"""

import surehold

SITES = {"tides": ["moon", "sea"], "moon": ["orbit"], "orbit": []}


@surehold.step(retries=3)
def search(topic: str) -> list[str]:
    print("search", topic)
    return [f"story {number} on {topic}" for number in range(2)]


@surehold.step(retries=3)
def evaluate(topic: str, stories: list[str]) -> list[str]:
    print("evaluate", topic)
    return SITES.get(topic, [])  # a model's answer: the topics to follow


@surehold.step(retries=3)
def write_report(topic: str, stories: list[str]) -> str:
    print("report", topic)
    return f"{topic}: {len(stories)} stories"


@surehold.workflow
def research_one(topic: str) -> tuple[list[str], list[str]]:
    stories = search(topic)
    return stories, evaluate(topic, stories)


@surehold.workflow
def research(topic: str, most: int = 3) -> str:
    found: list[str] = []
    topics, rounds = [topic], 0
    while topics and rounds < most:
        rounds += 1
        surehold.publish(status=f"round {rounds} on {topics[0]}", stories=len(found))
        stories, follow = research_one(topics.pop(0))
        found += stories
        topics += follow[:1]
    surehold.publish(status="writing")
    return write_report(topic, found)


if __name__ == "__main__":
    print(research.run("tides", run_id="research-1").value)
