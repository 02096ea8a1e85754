"""Three bookings; the last one fails, and the others are undone in reverse.

$ python saga.py
"""

import surehold


@surehold.step
def book(what: str) -> str:
    print("book", what)
    if what == "hotel":
        raise PermissionError("the hotel is full")
    return f"{what}-1"


@surehold.step
def cancel(booking: str) -> None:
    print("cancel", booking)


@surehold.workflow
def trip() -> str:
    booked: list[str] = []
    try:
        for what in ("flight", "car", "hotel"):
            booked.append(book(what))
    except PermissionError as error:
        for booking in reversed(booked):
            cancel(booking)
        return f"no trip: {error}"
    return ", ".join(booked)


if __name__ == "__main__":
    print(trip.run(run_id="trip-1").value)
