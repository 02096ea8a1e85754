from surehold.storage.memory.state_store import StateStore as StateStore
from surehold.storage.memory.state_store import StateStoreStorage as StateStoreStorage
from surehold.storage.memory.storage import MemoryStorage as MemoryStorage
