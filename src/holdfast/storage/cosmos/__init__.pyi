from holdfast.storage.cosmos.storage import CosmosStorage as CosmosStorage
