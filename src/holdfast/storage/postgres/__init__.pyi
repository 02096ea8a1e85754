from holdfast.storage.postgres.storage import PostgresStorage as PostgresStorage
