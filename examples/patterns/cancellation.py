"""A run is cancelled, and gives back what it holds.

$ python cancellation.py
$ surehold queue cancel rental-1
$ python cancellation.py
"""

import surehold


@surehold.step
def rent(size: str) -> str:
    print("rent", size)
    return f"{size}-4"


@surehold.step
def give_back(machine: str) -> None:
    print("give back", machine)


@surehold.workflow
def rental(size: str) -> str:
    machine = rent(size)
    try:
        return surehold.receive("done")
    finally:
        give_back(machine)


if __name__ == "__main__":
    print(rental.run("large", run_id="rental-1", wait=False).status)
