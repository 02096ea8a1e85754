"""A call that another system ends, hours later and from anywhere.

$ python completion.py
$ surehold answer booking-1 confirmed '"room 12"'
$ python completion.py
"""

import surehold


@surehold.step
def ask_hotel(guest: str) -> None:
    print("ask for", guest)


@surehold.workflow
def booking(guest: str) -> str:
    ask_hotel(guest)
    return f"{guest}: {surehold.wait_for('confirmed', timeout=86_400)}"


if __name__ == "__main__":
    result = booking.run("Ann", run_id="booking-1", wait=False)
    print(result.status, result.returned or "")
