"""A step whose work is done by another process.

$ python multiprocess.py
"""

import subprocess

import surehold


@surehold.step(timeout=60)
def count(text: str) -> int:
    print("count", text)
    made = subprocess.run(["wc", "-c"], input=text, capture_output=True, text=True, check=True)
    return int(made.stdout)


@surehold.workflow
def counted(texts: list[str]) -> int:
    return sum(count(text) for text in texts)


if __name__ == "__main__":
    print(counted.run(["kelp", "dulse"], run_id="counted-1").value)
