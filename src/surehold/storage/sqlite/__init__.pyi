from surehold.storage.sqlite.storage import SQLiteStorage as SQLiteStorage
