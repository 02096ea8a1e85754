"""A Cosmos DB container as a bucket: a document an object, a partition a run."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from surehold.errors import (
    MissingExtraError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from surehold.lazy import extra
from surehold.storage.addresses import mask_url
from surehold.storage.objects import Bucket, ListedObject, StoredObject

with extra("cosmos", "Cosmos DB storages need the package azure-cosmos"):
    from azure.core import MatchConditions
    from azure.core.exceptions import AzureError, ClientAuthenticationError
    from azure.cosmos import CosmosClient
    from azure.cosmos.exceptions import CosmosHttpResponseError

# Its errors are raised too, but for those of a check in the background that a close interrupts.
logging.getLogger("azure").addHandler(logging.NullHandler())

_KEYS = ("AZURE_COSMOS_KEY", "COSMOS_KEY", "ACCOUNT_KEY")
_PART = 1_400_000
"""Bytes of an object in one document, which may have 2 MB of text."""
_TRIES = 20
_GONE, _TAKEN, _CHANGED, _SLOW, _LARGE, _FULL = 404, 409, 412, 429, 413, 507
_REFUSED = (401, 403)


class DocumentBucket(Bucket):
    """The documents of a container below a prefix of their ids.

    Requests that the service refuses because its throughput is used up (429) are repeated after
    the time that it names.
    """

    def __init__(
        self,
        account: str,
        database: str,
        container: str,
        prefix: str,
        *,
        endpoint: str | None,
        timeout: float,
        patience: float,
    ) -> None:
        where = f"cosmos://{account}/{database}/{container}"
        super().__init__(
            f"{where}/{prefix}".rstrip("/"),
            (where, endpoint or ""),
            timeout=timeout,
            patience=patience,
        )
        self._prefix = f"{prefix}:" if prefix else ""
        try:
            self._client = CosmosClient(
                endpoint or f"https://{account}.documents.azure.com:443/",
                credential=_credential(),
                connection_timeout=timeout,
                read_timeout=timeout,
                enable_endpoint_discovery=endpoint is None,
                retry_throttle_total=9,
                retry_throttle_backoff_max=int(patience) + 1,
            )
        except (AzureError, OSError, ValueError) as error:
            super().close()
            raise self._failure(error) from None
        self._container = self._client.get_database_client(database).get_container_client(container)

    def close(self) -> None:
        super().close()
        self._client.close()

    def _store(self, key: str, data: bytes, mode: Mapping[str, str] | str) -> dict[str, str] | None:
        document = self._document(key, data)
        try:
            if mode == "create":
                made = self._container.create_item(document)
            elif mode == "overwrite":
                made = self._container.upsert_item(document)
            else:
                assert not isinstance(mode, str)
                made = self._container.replace_item(
                    document["id"],
                    document,
                    etag=mode["e_tag"],
                    match_condition=MatchConditions.IfNotModified,
                )
        except CosmosHttpResponseError as error:
            if error.status_code not in (_TAKEN, _CHANGED) and not (
                error.status_code == _GONE and not isinstance(mode, str)
            ):
                raise
            self._drop_parts(document)
            return None
        return {"e_tag": made["_etag"]}

    def _fetch(self, key: str) -> StoredObject | None:
        document = self._read(key)
        if document is None:
            return None
        data = base64.b64decode(document["data"])
        for part in document.get("parts", ()):
            more = self._read_item(part, document["pk"])
            if more is None:
                return None
            data += base64.b64decode(more["data"])
        return StoredObject(data, {"e_tag": document["_etag"]})

    def _fetch_range(self, key: str, start: int, end: int) -> bytes | None:
        document = self._read(key)
        if document is None:
            return None
        data = base64.b64decode(document["data"])
        found, size = data[start:end], len(data)
        for number, part in enumerate(document.get("parts", ()), 1):
            first = number * size
            if first < end and start < first + size:
                more = self._read_item(part, document["pk"])
                if more is None:
                    return None
                found += base64.b64decode(more["data"])[max(start - first, 0) : end - first]
        return found

    def _list(self, prefix: str, after: str | None, size: int) -> list[ListedObject]:
        first = self._id(prefix + "/")
        where = "c.id > @after AND STARTSWITH(c.id, @first)"
        values = {"@after": self._id(after) if after else first, "@first": first}
        if "/" in prefix:
            where += " AND c.pk = @pk"
            values["@pk"] = self._partition(prefix + "/")
        rows = self._query(
            f"SELECT c.id, c.size, c._ts FROM c WHERE {where} ORDER BY c.id", values, size
        )
        return [
            ListedObject(
                row["id"].removeprefix(self._prefix).replace(":", "/"),
                row["size"],
                datetime.fromtimestamp(row["_ts"], UTC),
            )
            for row in rows
        ]

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            document = self._read(key)
            if document is not None:
                self._drop_parts(document)
                self._delete_item(document["id"], document["pk"])

    def _clear(self, key: str) -> None:
        self._drop_parts(self._read(key) or {})
        super()._clear(key)

    def _duplicate(self, key: str, to: str) -> None:
        found = self._fetch(key)
        if found is not None:
            self._store(to, found.data, "overwrite")

    def _failure(self, error: Exception) -> StorageError:
        text = mask_url(str(error).strip().partition("\n")[0]) or type(error).__name__
        status = getattr(error, "status_code", None)
        if status in _REFUSED or isinstance(error, ClientAuthenticationError | ValueError):
            return StorageError(
                f"{self.where} refused: {text}",
                hint="check AZURE_COSMOS_KEY, or the role of this identity",
            )
        if status == _GONE:
            return StorageError(
                f"{self.where} is not there: {text}",
                hint="create the database and the container, with the partition key /pk",
            )
        if status in (_LARGE, _FULL):
            return StorageFullError(f"{self.where} takes no more: {text}")
        if status is not None and 400 <= status < 500 and status not in (408, 410, _SLOW, 449):
            return StorageError(f"{self.where} failed: {text}")
        return StorageUnavailableError(f"{self.where} cannot be reached: {text}")

    _errors = (AzureError, OSError)

    def _id(self, key: str) -> str:
        return self._prefix + key.replace("/", ":")

    def _partition(self, key: str) -> str:
        """The run that an object belongs to; the index of runs is a partition of its own."""
        kind, _, rest = key.partition("/")
        run = rest.partition("/")[0]
        return self._prefix + (run if kind in ("log", "data", "leases", "aside") else f"={kind}")

    def _document(self, key: str, data: bytes) -> dict[str, Any]:
        """The document of an object; the parts of a large one are stored before it."""
        pk = self._partition(key)
        parts = []
        for start in range(_PART, len(data), _PART):
            part = f"{self._prefix}part:{os.urandom(12).hex()}"
            text = base64.b64encode(data[start : start + _PART]).decode()
            self._container.create_item({"id": part, "pk": pk, "data": text})
            parts.append(part)
        text = base64.b64encode(data[:_PART]).decode()
        document = {"id": self._id(key), "pk": pk, "size": len(data), "data": text}
        return {**document, "parts": parts} if parts else document

    def _read(self, key: str) -> dict[str, Any] | None:
        return self._read_item(self._id(key), self._partition(key))

    def _read_item(self, id_: str, pk: str) -> dict[str, Any] | None:
        try:
            return dict(self._container.read_item(id_, pk))
        except CosmosHttpResponseError as error:
            if error.status_code == _GONE:
                return None
            if error.status_code != 500:
                raise
            # An emulator says so of a document that is not there; a query tells.
            text = "SELECT * FROM c WHERE c.id = @id AND c.pk = @pk"
            return next(iter(self._query(text, {"@id": id_, "@pk": pk}, 1)), None)

    def _query(self, text: str, values: Mapping[str, str], size: int) -> list[dict[str, Any]]:
        """The first *size* rows of a query."""
        for _ in range(_TRIES):
            # Other requests of this client change the headers of an answer while it reads them.
            with suppress(RuntimeError):
                rows = self._container.query_items(
                    text,
                    parameters=[{"name": name, "value": value} for name, value in values.items()],
                    enable_cross_partition_query=True,
                    max_item_count=size,
                )
                return list(islice(rows, size))
        raise StorageUnavailableError(f"a query of {self.where} failed {_TRIES} times")

    def _delete_item(self, id_: str, pk: str) -> None:
        try:
            self._container.delete_item(id_, pk)
        except CosmosHttpResponseError as error:
            if error.status_code not in (_GONE, 500):
                raise

    def _drop_parts(self, document: Mapping[str, Any]) -> None:
        """Delete the parts of a document, while it is there and names them."""
        for part in document.get("parts", ()):
            self._delete_item(part, document["pk"])


def _credential() -> Any:
    """The key of the account from the environment, else the identity of this machine."""
    key = next(filter(None, map(os.environ.get, _KEYS)), None)
    if key is not None:
        return key
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as missing:
        raise MissingExtraError(
            "without AZURE_COSMOS_KEY, Cosmos DB storages need the package azure-identity",
            hint="set AZURE_COSMOS_KEY, or: pip install azure-identity",
        ) from missing
    return DefaultAzureCredential()
