"""Journals in Azure Cosmos DB: the log of an object store, in documents."""

from __future__ import annotations

from surehold.errors import UsageError
from surehold.storage.cosmos.container import DocumentBucket
from surehold.storage.objects import BucketStorage


class CosmosStorage(BucketStorage):
    """Journals in a container: ``cosmos://account/database/container/prefix``.

    The container must be there, with the partition key ``/pk``. The key of the account comes from
    AZURE_COSMOS_KEY; without it the identity of this machine is used. *timeout*, *patience* and
    *compress* are as in `ObjectStorage`. *endpoint* overrides the address of the account.
    """

    def __init__(
        self,
        url: str,
        *,
        compress: bool | str = "zstd",
        endpoint: str | None = None,
        timeout: float = 30.0,
        patience: float = 30.0,
    ) -> None:
        scheme, mark, rest = url.partition("://")
        parts = rest.split("/", 3)
        if scheme != "cosmos" or not mark or len(parts) < 3 or not all(parts[:3]) or "@" in rest:
            raise UsageError(
                "the address of a Cosmos DB container is cosmos://account/database/container",
                hint="the account's key comes from AZURE_COSMOS_KEY, never from the address",
            )
        prefix = parts[3].strip("/").replace("/", "-") if len(parts) > 3 else ""
        self.check_settings(compress, timeout, patience, endpoint)
        bucket = DocumentBucket(
            parts[0],
            parts[1],
            parts[2],
            prefix,
            endpoint=endpoint,
            timeout=timeout,
            patience=patience,
        )
        super().__init__(bucket, compress=compress)
