from holdfast.storage.memory.storage import MemoryStorage as MemoryStorage
