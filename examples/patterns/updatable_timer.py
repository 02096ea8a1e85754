"""A timer that others set anew while it runs.

$ python updatable_timer.py
$ surehold send alarm-1 ring-in 7200 --key 1
$ surehold send alarm-1 ring-in 0.01 --key 2
$ python updatable_timer.py
"""

import surehold


@surehold.step
def ring(after: float) -> str:
    print("ring")
    return f"rang, {after:g} s after it was set last"


@surehold.workflow
def alarm(seconds: float) -> str:
    while True:
        try:
            seconds = surehold.receive("ring-in", timeout=seconds)
        except TimeoutError:
            return ring(seconds)


if __name__ == "__main__":
    result = alarm.run(3600, run_id="alarm-1", wait=False)
    print(result.status, result.returned or "")
