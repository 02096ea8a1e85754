"""A mail every thirty days, until a message ends it; no process waits.

$ python sleep_for_days.py
$ surehold send reminder-1 stop --key 1
$ python sleep_for_days.py
"""

import surehold

MONTH = 30 * 24 * 3600


@surehold.step
def mail(number: int) -> None:
    print("mail", number)


@surehold.workflow
def reminder(number: int = 1) -> str:
    mail(number)
    try:
        surehold.receive("stop", timeout=MONTH)
    except TimeoutError:
        surehold.continue_as_new(number + 1)
    return f"stopped after {number}"


if __name__ == "__main__":
    result = reminder.run(run_id="reminder-1", wait=False)
    print(result.status, result.returned or "")
