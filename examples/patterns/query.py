"""A run answers what others ask, also when it has ended; nothing is recorded.

$ python query.py
"""

import surehold


@surehold.step
def greet(name: str) -> None:
    print("greet", name)


@surehold.workflow
def greeting(name: str) -> None:
    text = f"Hello, {name}!"
    surehold.on_query("greeting", lambda: text)
    greet(name)
    surehold.receive("leave")
    text = f"Goodbye, {name}!"


if __name__ == "__main__":
    greeting.run("World", run_id="greeting-1", wait=False)
    first = surehold.query("greeting-1", "greeting")
    surehold.send("greeting-1", "leave", idempotency_key="1") if "Hello" in first else None
    greeting.run("World", run_id="greeting-1")
    print(surehold.query("greeting-1", "greeting"))
