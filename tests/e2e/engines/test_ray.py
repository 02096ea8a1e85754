"""Runs over a real Ray cluster of three nodes, through every fault that it can have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.media import times
from tests.e2e.engines import processes
from tests.e2e.engines.clusters import RayCluster
from tests.e2e.engines.trial import Trial

from surehold.executors import RayExecutor

LEASE = 10.0
ACTORS = 6


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, times(60, 500), pause=0.2)


def pool(trial: Trial, cluster: RayCluster) -> RayExecutor:
    return RayExecutor(
        trial.address,
        "tests.executors.counting:count",
        address=cluster.address,
        actors=ACTORS,
        concurrency=4,
        lease_seconds=LEASE,
    )


@pytest.mark.timeout(3600)
def test_no_run_is_lost_whatever_dies(
    trial: Trial, ray_cluster: RayCluster, figure: Callable[[str], None]
) -> None:
    executor = pool(trial, ray_cluster)
    for run_id in trial.start(0.2):
        executor.submit(run_id)
    assert len({worker.node for worker in executor.workers(timeout=120)}) == 3
    trial.reach(0.3)
    trial.kill([trial.busiest()])

    trial.start(0.2)
    trial.reach(0.3)
    frozen = trial.busiest()
    left = trial.freeze(frozen)
    processes.until(lambda: trial.taken_over(left, frozen), "the takeover")
    processes.wake([frozen])

    trial.start(0.2)
    trial.reach(0.3)
    trial.kill(ray_cluster.node_processes(0))
    ray_cluster.kill_node(0)
    ray_cluster.add_node()

    trial.start(0.2)
    trial.reach(0.3)
    trial.restart_postgres(trial.workers())

    trial.start(0.2)
    trial.reach(0.3)
    trial.kill(ray_cluster.every_process())
    executor.close(timeout=0)
    ray_cluster.kill()
    ray_cluster.start()
    executor = pool(trial, ray_cluster)

    verdict = trial.finish()
    executor.close(timeout=30)
    assert verdict.fenced >= 1
    figure(f"Ray, 3 nodes, an actor, a node, PostgreSQL and all of them killed: {verdict}")


@pytest.mark.timeout(1800)
def test_a_detached_pool_stays_until_it_is_drained(tmp_path: Path) -> None:
    trial = Trial(tmp_path, 8, pause=0.0)
    cluster = RayCluster(nodes=2)

    def connect() -> RayExecutor:
        return RayExecutor(
            trial.address,
            "tests.executors.counting",
            address=cluster.address,
            actors=2,
            concurrency=2,
            pool="kept",
            detached=True,
        )

    try:
        cluster.start()
        with connect() as executor:
            before = {worker.pid for worker in executor.workers(timeout=120)}
        assert len(before) == 2
        assert all(processes.is_live(pid) for pid in before)
        trial.start()
        executor = connect()
        assert {worker.pid for worker in executor.workers(timeout=120)} == before
        assert trial.finish().repeated == 0
        executor.drain(timeout=120)
        processes.until(lambda: not any(map(processes.is_live, before)), "the end of the pool")
        executor.close()
    finally:
        cluster.stop()
