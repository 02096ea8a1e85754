"""The first use of an installed wheel: every public name, a run, and a workflow in an empty place."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import version

import surehold
from surehold.errors import MissingExtraError

for name in surehold.__all__:
    with suppress(MissingExtraError):  # it says how to install what is missing
        getattr(surehold, name)
assert "site-packages" in surehold.__file__, surehold.__file__
assert surehold.__version__ == version("surehold")

with surehold.run("first") as run:
    for item in run.each(["a", "b"]):
        run.state[item] = run.call(str.upper, item)


@surehold.workflow
def shout(words: list[str]) -> str:
    return " ".join(word.upper() for word in words)


result = shout.run(["a", "b"], run_id="second")
print(f"{len(surehold.__all__)} names; {run.status}, {result.status}: {result.value}")
