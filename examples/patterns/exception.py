"""A failure passes through calls and children with its cause, also when it is replayed.

$ python exception.py
"""

import surehold


class NotFound(Exception):
    pass


@surehold.step
def look_up(name: str) -> str:
    print("look up", name)
    try:
        raise OSError("disk 3 is gone")
    except OSError as error:
        raise NotFound(name) from error


@surehold.workflow
def find(name: str) -> str:
    return look_up(name)


@surehold.step
def report(text: str) -> str:
    print("report", text)
    return text


@surehold.workflow
def search(name: str) -> str:
    try:
        return find(name)
    except NotFound as error:
        return report(f"{type(error).__name__} {error}, from {error.__cause__!r}")


if __name__ == "__main__":
    print(search.run("kelp", run_id="search-1").value)
