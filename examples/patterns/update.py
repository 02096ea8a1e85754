"""Others change a run, and wait for its answer; what does not fit is refused.

$ python update.py
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import surehold


@surehold.step
def ship(how: str) -> str:
    print("ship", how)
    return f"shipped by {how}"


def check(how: str) -> None:
    if how not in ("post", "courier"):
        raise ValueError(f"nobody ships by {how}")


@surehold.workflow
def order() -> str:
    update = surehold.receive_update("shipping", check=check)
    done = ship(update.value)
    update.reply(done)
    return done


if __name__ == "__main__":
    order.run(run_id="order-1", wait=False)
    ask = partial(surehold.update, "order-1", "shipping")
    with ThreadPoolExecutor(max_workers=1) as pool:
        refused = pool.submit(ask, "balloon", idempotency_key="1")
        asked = pool.submit(ask, "courier", idempotency_key="2")
        order.run(run_id="order-1")
        print(refused.exception(), "and", asked.result())
