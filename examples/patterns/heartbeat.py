"""A long step tells how far it has come; killed, it continues there.

$ python heartbeat.py
"""

import surehold


@surehold.step(heartbeat_timeout=60)
def compose(greeting: str, name: str) -> str:
    for part in range(surehold.last_heartbeat(0), 3):
        print("compose part", part)
        surehold.heartbeat(part + 1)
    return f"{greeting}, {name}!"


@surehold.workflow
def greeting(name: str) -> str:
    return compose("Hello", name)


if __name__ == "__main__":
    print(greeting.run("World", run_id="greeting-1").value)
