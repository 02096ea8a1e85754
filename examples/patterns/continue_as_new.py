"""A run without an end begins anew, and stays small.

$ python continue_as_new.py
"""

import surehold


@surehold.step
def visit(round: int) -> int:
    print("visit", round)
    return round + 1


@surehold.workflow
def patrol(round: int = 0) -> str:
    following = visit(round)
    if following < 5:
        surehold.continue_as_new(following)
    return f"{following} rounds"


if __name__ == "__main__":
    print(patrol.run(run_id="patrol-1").value)
