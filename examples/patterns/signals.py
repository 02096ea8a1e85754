"""Messages to a run: kept, and taken in the order in which they came.

$ python signals.py
$ surehold send greeter-1 name Ann --key 1
$ surehold send greeter-1 name Bob --key 2
$ surehold send greeter-1 name exit --key 3
$ python signals.py
"""

import surehold


@surehold.step
def greet(name: str) -> str:
    print("greet", name)
    return f"Hello, {name}"


@surehold.workflow
def greeter() -> list[str]:
    greetings = []
    while (name := surehold.receive("name")) != "exit":
        greetings.append(greet(name))
    return greetings


if __name__ == "__main__":
    result = greeter.run(run_id="greeter-1", wait=False)
    print(result.status, result.returned)
