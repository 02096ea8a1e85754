"""A step that is a method: its object holds a client, and is not recorded.

$ python method.py
"""

import surehold


class Database:
    def __init__(self, address: str) -> None:
        self.address = address

    @surehold.step
    def update(self, text: str) -> str:
        print("update", self.address, text)
        return f"stored {text}"


DATABASE = Database("db1")


@surehold.workflow
def save(text: str) -> str:
    return DATABASE.update(text)


if __name__ == "__main__":
    print(save.run("a greeting", run_id="save-1").value)
