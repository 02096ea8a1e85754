"""Agents that ask a person; their questions are an inbox that every tool of Surehold shows.

$ python agent_inbox.py
$ surehold answer agent-1 approval '"approve"'
$ surehold answer agent-2 approval '"deny"'
$ python agent_inbox.py
"""

import surehold


@surehold.step
def write(task: str) -> str:
    print("write", task)
    return f"A letter about {task}"


@surehold.step
def mail(text: str) -> str:
    print("mail", text)
    return f"mailed: {text}"


@surehold.workflow
def agent(task: str) -> str:
    draft = write(task)
    surehold.publish(status="pending", draft=draft)  # the inbox: surehold.pending()
    try:
        answer = surehold.wait_for("approval", timeout=7 * 86_400)
    except TimeoutError:
        answer = "nobody answered"
    surehold.publish(status=answer)
    return mail(draft) if answer == "approve" else f"not mailed: {answer}"


if __name__ == "__main__":
    ended = [
        agent.run(task, run_id=f"agent-{number}", wait=False)
        for number, task in enumerate(["rent", "tax"], start=1)
    ]
    print([(one.status, one.returned) for one in ended])
