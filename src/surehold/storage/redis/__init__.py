"""Runs in a Redis or Valkey server, shared by many processes and machines.

An append is one Lua script, so its decision and its effects are one step. The keys of a run share
a hash tag and hold all that is known of it; indexes over runs can be rebuilt from them. Needs the
extra `redis`.
"""

from __future__ import annotations

from surehold.storage.redis.storage import RedisStorage as RedisStorage
