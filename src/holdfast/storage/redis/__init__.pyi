from holdfast.storage.redis.storage import RedisStorage as RedisStorage
