from surehold.storage.cosmos.storage import CosmosStorage as CosmosStorage
