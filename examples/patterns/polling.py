"""A service is asked until it has an answer; no process waits between two questions.

$ python polling.py
"""

import surehold


@surehold.step
def ask(attempt: int) -> str | None:
    print("ask", attempt)
    return "ready" if attempt == 3 else None


@surehold.workflow
def poll() -> str:
    attempt, pause = 1, 0.01
    while (answer := ask(attempt)) is None:
        surehold.sleep(pause)
        attempt, pause = attempt + 1, min(2 * pause, 60)
    return f"{answer} after {attempt} questions"


if __name__ == "__main__":
    print(poll.run(run_id="poll-1").value)
