"""A shop: order and stock change in the transactions of its own database, payment is awaited.

$ python widget_store.py
$ surehold send order-1 payment paid --key 1
$ python widget_store.py
"""

import sqlite3

import surehold

SCHEMA = """
CREATE TABLE IF NOT EXISTS widgets(left INTEGER);
CREATE TABLE IF NOT EXISTS orders(id INTEGER PRIMARY KEY, status TEXT);
INSERT INTO widgets SELECT 9 WHERE NOT EXISTS (SELECT 1 FROM widgets);
"""


def shop() -> sqlite3.Connection:
    return sqlite3.connect("shop.db")


@surehold.step(transaction=shop)
def create_order(connection: sqlite3.Connection) -> int:
    made = connection.execute("INSERT INTO orders(status) VALUES ('pending')")
    return made.lastrowid or 0


@surehold.step(transaction=shop)
def reserve(connection: sqlite3.Connection, number: int) -> bool:
    taken = connection.execute("UPDATE widgets SET left = left - ? WHERE left >= ?", [number] * 2)
    return taken.rowcount > 0


@surehold.step(transaction=shop)
def set_status(connection: sqlite3.Connection, order: int, status: str) -> str:
    connection.execute("UPDATE orders SET status = ? WHERE id = ?", (status, order))
    return status


@surehold.step
def dispatch(order: int) -> None:
    print("dispatch", order)


@surehold.workflow
def checkout() -> str:
    order = create_order()
    if not reserve(1):
        return set_status(order, "cancelled")
    surehold.publish(order=order, payment=f"/pay/{order}")  # the page asks status_of() for it
    if surehold.receive("payment") != "paid":
        reserve(-1)
        return set_status(order, "cancelled")
    set_status(order, "paid")
    dispatch(order)
    return set_status(order, "dispatched")


if __name__ == "__main__":
    shop().executescript(SCHEMA).connection.commit()
    result = checkout.run(run_id="order-1", wait=False)
    rows = shop().execute("SELECT left, (SELECT group_concat(status) FROM orders) FROM widgets")
    print(result.status, *rows.fetchone())
