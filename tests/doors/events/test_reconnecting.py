"""A client of the recorded events that is cut off anywhere misses none."""

from __future__ import annotations

import surehold


@surehold.step
async def read(page: int) -> int:
    return page


@surehold.workflow
async def report() -> str:
    await read(1)
    return str(await surehold.interrupt("Publish?", schema=bool))


async def test_a_client_that_is_cut_off_after_any_event_is_given_the_rest(db: str) -> None:
    await report.run(run_id="r", storage=db, wait=False)
    surehold.answer("r", None, True, storage=db)
    await report.resume("r", storage=db)
    whole = [*surehold.events("r", storage=db)]
    kinds = [event.type for event in whole]
    asked, waits = kinds.index("run.asked"), kinds.index("run.waiting")
    assert asked < waits < kinds.index("run.answered") < kinds.index("run.completed")
    for at, event in enumerate(whole):
        rest = [*surehold.events("r", since=event.seq, storage=db)]
        assert [one.type for one in rest][-len(kinds[at + 1 :]) or len(rest) :] == kinds[at + 1 :]
        assert len(rest) <= len(kinds[at:]) + 2
    assert [*surehold.events("r", since=whole[-1].seq, storage=db)] == []
