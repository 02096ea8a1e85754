"""A payment that the other side may end at once, or later by a webhook.

$ python payment_webhook.py
$ surehold answer payment-1 webhook '"succeeded"'
$ python payment_webhook.py
"""

import surehold


@surehold.step
def create_intent(cents: int, idempotency_key: str = "") -> str:
    print("create intent", cents)  # the key is filled in, and the same after a kill
    return "processing"


@surehold.workflow
def pay(cents: int) -> str:
    status = create_intent(cents)
    if status == "processing":  # the webhook's handler calls surehold.answer(run_id, "webhook", …)
        status = surehold.wait_for("webhook")
    if status != "succeeded":
        raise RuntimeError(f"payment {status}")
    return f"paid {cents}"


if __name__ == "__main__":
    result = pay.run(990, run_id="payment-1", wait=False)
    print(result.status, result.returned or "")
