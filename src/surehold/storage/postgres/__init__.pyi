from surehold.storage.postgres.storage import PostgresStorage as PostgresStorage
