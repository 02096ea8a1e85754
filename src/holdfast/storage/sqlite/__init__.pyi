from holdfast.storage.sqlite.storage import SQLiteStorage as SQLiteStorage
