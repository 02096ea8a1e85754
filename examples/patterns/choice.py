"""The arguments decide which calls are made.

$ python choice.py
"""

from enum import Enum

import surehold


class Fruit(Enum):
    APPLE = "apple"
    BANANA = "banana"
    CHERRY = "cherry"


@surehold.step
def pick(amount: int) -> str:
    print("pick", amount)
    return f"{amount} picked"


@surehold.step
def order(fruit: Fruit, amount: int) -> str:
    print("order", fruit.value, amount)
    return f"{amount} x {fruit.value} ordered"


@surehold.workflow
def shop(wanted: list[tuple[Fruit, int]]) -> list[str]:
    got = []
    for fruit, amount in wanted:
        match fruit:
            case Fruit.APPLE:
                got.append(pick(amount))
            case _:
                got.append(order(fruit, amount))
    return got


if __name__ == "__main__":
    print(shop.run([(Fruit.APPLE, 8), (Fruit.CHERRY, 25)], run_id="shop-1").value)
