"""A workflow calls another one, and begins a third as a run of its own.

$ python child.py
"""

import surehold


@surehold.step
def compose(greeting: str, name: str) -> str:
    print("compose", name)
    return f"{greeting}, {name}!"


@surehold.workflow
def greet(greeting: str, name: str) -> str:
    return compose(greeting, name)


@surehold.workflow
def greeting(name: str) -> str:
    text = greet("Hello", name)
    mailed = greet.start("Mail", name)  # a run for a worker, begun once
    return f"{text} and {mailed.run_id.rpartition('-')[0]}"


if __name__ == "__main__":
    print(greeting.run("World", run_id="greeting-1").value)
