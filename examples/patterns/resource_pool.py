"""Two resources, and runs that each take one for a while.

$ python resource_pool.py
$ surehold send user-1 release --key 1
$ surehold send user-2 release --key 1
$ surehold send user-3 release --key 1
$ python resource_pool.py
"""

import surehold


@surehold.step
def use(user: str) -> str:
    print("use", user)
    return f"{user} is done"


@surehold.workflow
def user(name: str) -> str:
    with surehold.lock("pool", limit=2):
        done = use(name)
        surehold.receive("release", timeout=3600)
    return done


if __name__ == "__main__":
    runs = [user.run(f"user-{n}", run_id=f"user-{n}", wait=False) for n in (1, 2, 3)]
    print([run.returned or run.status for run in runs])
