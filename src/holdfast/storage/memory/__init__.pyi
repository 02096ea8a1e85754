from holdfast.storage.memory.state_store import StateStore as StateStore
from holdfast.storage.memory.state_store import StateStoreStorage as StateStoreStorage
from holdfast.storage.memory.storage import MemoryStorage as MemoryStorage
