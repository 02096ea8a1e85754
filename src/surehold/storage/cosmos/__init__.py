"""Runs in an Azure Cosmos DB container, shared by many processes and machines.

The documents are those of an object store: changes of a run that are created only if nothing is
there. Only single documents and their etags are relied on. Needs the extra `cosmos`.
"""

from __future__ import annotations

from surehold.storage.cosmos.storage import CosmosStorage as CosmosStorage
