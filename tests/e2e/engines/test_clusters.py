"""The engines themselves: the tests of executors prove nothing on engines that do not fail."""

from __future__ import annotations

from tests.e2e.engines import processes
from tests.e2e.engines.clusters import RayCluster, TemporalServer


def test_a_killed_node_takes_its_processes_with_it(ray_cluster: RayCluster) -> None:
    import ray

    ray.init(address=ray_cluster.address, log_to_driver=False)
    assert len([node for node in ray.nodes() if node["Alive"]]) == 4
    victims = ray_cluster.node_processes(0)
    ray_cluster.kill_node(0)
    processes.until(lambda: not set(processes.tree(*victims)) & set(victims), "the end of the node")
    processes.until(lambda: sum(node["Alive"] for node in ray.nodes()) == 3, "its loss", 120)


def test_a_killed_server_starts_again_on_its_file(temporal_server: TemporalServer) -> None:
    temporal_server.kill()
    temporal_server.start()
