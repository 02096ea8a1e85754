"""A run for every time that a cron expression names; workers begin them.

$ python cron.py
"""

import threading

import surehold
from surehold.executors import Worker


@surehold.step
def greet(name: str) -> str:
    print("greet", name)
    return f"Hello, {name}!"


@surehold.workflow
def greeting(name: str) -> str:
    text = greet(name)
    done.set()
    return text


every_second = surehold.schedule("* * * * * *", greeting, "World")
done = threading.Event()

if __name__ == "__main__":
    import cron

    # What `surehold worker cron` does, until one run has ended.
    with surehold.open_storage() as storage:
        worker = Worker.of_modules(storage, ["cron"], ["default"], concurrency=1, lease_seconds=30)
        threading.Thread(target=lambda: (cron.done.wait(), worker.stop()), daemon=True).start()
        worker.run()
    print("begun by the clock")
