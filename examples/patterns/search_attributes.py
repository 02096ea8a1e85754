"""A run sets what it is found by, and changes it.

$ python search_attributes.py
"""

import surehold


@surehold.step
def greet(name: str) -> str:
    print("greet", name)
    return f"Hello, {name}!"


@surehold.workflow
def greeting(name: str) -> str:
    surehold.set_attributes(keyword="old-value", name=name)
    text = greet(name)
    surehold.set_attributes(keyword="new-value")
    return text


if __name__ == "__main__":
    greeting.run("World", run_id="greeting-1")
    for keyword in ("old-value", "new-value"):
        print(keyword, [run.run_id for run in surehold.find_runs({"keyword": keyword})])
