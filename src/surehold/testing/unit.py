"""Check the storages of this installation: PASS or FAIL, a line a promise.

```console
$ python -m surehold.testing.unit            # memory, file and sqlite
$ python -m surehold.testing.unit sqlite
```

It needs the extra `testing`. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surehold import testing
from surehold.errors import MissingExtraError
from surehold.testing.selftest import Verdicts

MEDIA = ("memory", "file", "sqlite")
_TEST = re.compile(r".*::Test(\w+)::test_(\w+)(?:\[(.*)\])?")


class _Reporter:
    """A plugin of pytest that tells what became of each promise."""

    def __init__(self, verdicts: Verdicts) -> None:
        self._verdicts = verdicts

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._verdicts.fail(report.nodeid or "collecting", _last_line(report))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped:
            self._verdicts.skip(_promise(report.nodeid), report.longrepr[2])
        elif report.failed:
            self._verdicts.fail(_promise(report.nodeid), _last_line(report))
        elif report.when == "call":
            self._verdicts.succeed(_promise(report.nodeid))


def _promise(node: str) -> str:
    found = _TEST.fullmatch(node)
    if found is None:
        return node
    medium, name, case = found.groups()
    return f"{medium.lower()}: {name.replace('_', ' ')}" + (f" ({case})" if case else "")


def _last_line(report: Any) -> str:
    lines = [line for line in str(report.longreprtext).splitlines() if line.startswith("E ")]
    return lines[0].removeprefix("E ").strip() if lines else str(report.longreprtext)[-200:]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the contract; gives the exit code."""
    parser = argparse.ArgumentParser("surehold.testing.unit", description=__doc__.split("\n")[0])
    parser.add_argument("medium", nargs="*", choices=[[], *MEDIA], help=", ".join(MEDIA))
    wanted = parser.parse_args(arguments).medium or MEDIA
    try:
        testing.StorageContract  # noqa: B018 - says what is missing, if something is
    except MissingExtraError as error:
        print(error, file=sys.stderr)
        return 2
    import pytest

    suite = Path(__file__).with_name("selftest") / "shipped.py"
    verdicts = Verdicts()
    # Neither the plugins nor the settings of the place where it is called are ours.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with tempfile.TemporaryDirectory(prefix="surehold-unit-") as directory:
        settings = Path(directory, "pytest.ini")
        settings.write_text("[pytest]\n")
        options = ["-p", "no:terminal", "-p", "no:cacheprovider", "-c", str(settings)]
        options += ["--rootdir", directory, "--basetemp", f"{directory}/runs"]
        tests = [f"{suite}::Test{medium.title()}" for medium in wanted]
        code = pytest.main([*options, *tests], plugins=[_Reporter(verdicts)])
    if code not in (0, 1):
        verdicts.fail("the suite runs", f"pytest ended with {code!r}")
    return verdicts.sum_up()


if __name__ == "__main__":
    sys.exit(main())
