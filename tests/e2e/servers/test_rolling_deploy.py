"""Workers of an old and a new version side by side: each run completes on code that fits it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from tests.servers import Postgres

from surehold import RunQuery
from surehold.storage.postgres import PostgresStorage

RUNS = 20
CODE = dedent("""
    import sys
    import surehold

    @surehold.step(in_doubt="retry")
    def work(number: int) -> str:
        return f"version {version}: {{number}}"

    @surehold.workflow(version={version})
    def job(number: int) -> list[str]:
        return [work(number) for _ in range({version} + 1)]

    if __name__ == "__main__":
        for number in range(int(sys.argv[2]), int(sys.argv[3])):
            job.start(number, run_id=f"run{{number}}", storage=sys.argv[1])
""")


def test_old_and_new_workers_complete_the_runs_that_fit_them(tmp_path: Path, home: Path) -> None:
    home.chmod(0o755)
    server = Postgres(home / "server").start()
    places = []
    for version in (1, 2):
        places.append(tmp_path / f"v{version}")
        places[-1].mkdir()
        (places[-1] / "rolling.py").write_text(CODE.format(version=version))
    half = RUNS // 2
    for place, first, last in ((places[0], 0, half), (places[1], half, RUNS)):
        command = [sys.executable, "-m", "rolling", server.url, str(first), str(last)]
        subprocess.run(command, cwd=place, check=True, timeout=120)
    worker = [sys.executable, "-m", "surehold", "worker", "rolling", "-s", server.url]
    workers = [
        subprocess.Popen(
            [*worker, "--until-idle"], cwd=place, stdout=subprocess.DEVNULL, env={**os.environ}
        )
        for place in reversed(places)  # the new one first, with the old runs ahead in the queue
    ]
    assert [one.wait(timeout=120) for one in workers] == [0, 0]
    with PostgresStorage(server.url) as storage:
        assert storage.queues() == []
        steps = {run.run_id: (run.status, run.step) for run in storage.runs(RunQuery())}
    server.stop()
    expected = {f"run{number}": ("completed", 2 if number < half else 3) for number in range(RUNS)}
    assert steps == expected
