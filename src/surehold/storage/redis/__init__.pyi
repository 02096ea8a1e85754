from surehold.storage.redis.storage import RedisStorage as RedisStorage
