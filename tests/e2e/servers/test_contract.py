"""The contract on servers that `make test` leaves out: Redis, and Valkey in a cluster."""

from __future__ import annotations

import pytest
from tests.contract import test_redis
from tests.servers import Redis, RedisCluster, redis_program, redis_server, valkey_cluster


@pytest.mark.skipif(redis_program() is None, reason="redis-server is not installed: make system")
class TestRedis(test_redis.TestValkey):
    def server(self) -> Redis:
        return redis_server()


class TestCluster(test_redis.TestValkey):
    def server(self) -> RedisCluster:
        return valkey_cluster()
