"""The code changes while runs are under way: they end on the old code, new ones take the new.

$ python patch.py before
$ surehold answer order-1 paid true
$ python patch.py
"""

import sys

import surehold

BEFORE = sys.argv[1:] == ["before"]


@surehold.step
def reserve(order: str) -> str:
    print("reserve", order)
    return f"{order} reserved"


@surehold.step
def check(order: str) -> str:
    print("check", order)
    return f"{order} checked"


@surehold.workflow
def fulfil(order: str) -> str:
    done = reserve(order)
    if not BEFORE and surehold.patched("check first"):
        done = f"{done}, {check(order)}"
    if order == "order-1":
        surehold.wait_for("paid")
    return done


if __name__ == "__main__":
    first = fulfil.run("order-1", run_id="order-1", wait=False)
    second = None if BEFORE else fulfil.run("order-2", run_id="order-2")
    print(first.returned, "and", second and second.returned)
