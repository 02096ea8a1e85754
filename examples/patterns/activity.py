"""One recorded call.

$ python activity.py
"""

import surehold


@surehold.step
def greet(name: str) -> str:
    print("greet", name)
    return f"Hello, {name}!"


@surehold.workflow
def greeting(name: str) -> str:
    return greet(name)


if __name__ == "__main__":
    print(greeting.run("World", run_id="greeting-1").value)
