"""Journals in S3, Google Cloud Storage or Azure Blob Storage, through obstore."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from surehold.errors import StorageError, StorageFullError, StorageUnavailableError, UsageError
from surehold.lazy import extra
from surehold.storage.addresses import mask_url
from surehold.storage.objects import Bucket, BucketStorage, ListedObject, StoredObject

with extra("objects", "object stores need the package obstore"):
    import obstore
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
    )
    from obstore.store import AzureStore, GCSStore, S3Store

_STORES: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for a profile of the AWS CLI:"
    ' eval "$(aws configure export-credentials --format env)"',
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or: gcloud auth application-default login",
    "az": "set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY",
}
_ROLES = ("/latest/api/token", "/latest/meta-data/", "/computeMetadata/", "/metadata/identity/")
"""The places at which a cloud gives a machine the credentials of its role."""
_AWAY = ("status code: 429", "status code: 408", "status code: 409")
_FULL = ("status code: 507", "QuotaExceeded", "InsufficientStorage", "EntityTooLarge")


class ObjectStorage(BucketStorage):
    """Keeps journals in a bucket: ``s3://bucket/prefix``, ``gs://…`` or ``az://…``.

    Credentials come from the environment, as the tools of each store take them. A request waits
    *timeout* seconds for its answer; while the store is away or busy it is repeated for up to
    *patience* seconds. Opening is not: it fails at once. *compress* ("zstd", "gzip" or False)
    compresses bodies before they are sent. *endpoint* and *region* override those of the
    environment.
    """

    def __init__(
        self,
        url: str,
        *,
        compress: bool | str = "zstd",
        endpoint: str | None = None,
        region: str | None = None,
        timeout: float = 30.0,
        patience: float = 30.0,
    ) -> None:
        scheme, mark, rest = url.partition("://")
        name, _, prefix = rest.partition("/")
        if scheme not in _STORES or not mark or not name or "?" in rest or "@" in name:
            raise UsageError(
                "the address of an object store is s3://bucket/prefix, gs:// or az://",
                hint="credentials come from the environment, never from the address",
            )
        self.check_settings(compress, timeout, patience, endpoint)
        bucket = CloudBucket(
            scheme,
            name,
            prefix.strip("/"),
            endpoint=endpoint,
            region=region,
            timeout=timeout,
            patience=patience,
        )
        super().__init__(bucket, compress=compress)


class CloudBucket(Bucket):
    """Objects below a prefix of a bucket, of a container in Azure."""

    def __init__(
        self,
        scheme: str,
        name: str,
        prefix: str,
        *,
        endpoint: str | None,
        region: str | None,
        timeout: float,
        patience: float,
    ) -> None:
        if region is not None and scheme != "s3":
            raise UsageError(
                f"{scheme}: storages have no region", hint="leave region= out", option="region"
            )
        variables = (os.environ.get(variable) for variable in _ENDPOINTS[scheme])
        given = endpoint or next(filter(None, variables), "")
        options: dict[str, Any] = {} if region is None else {"region": region}
        if given:
            options["base_url" if scheme == "gs" else "endpoint"] = given
        where = f"{scheme}://{name}"
        try:
            self._bucket = _STORES[scheme](
                name,
                prefix=prefix or None,
                client_options={
                    "timeout": timedelta(seconds=timeout),
                    "connect_timeout": timedelta(seconds=min(timeout, 10)),
                    "allow_http": given.startswith("http://"),
                },
                retry_config={"max_retries": 0},
                **options,
            )
        except (BaseError, ValueError, TypeError) as error:
            raise UsageError(
                f"{where} cannot be opened: {_brief(error)}",
                hint="give credentials by the environment, as the store's own tools take them",
            ) from None
        super().__init__(
            f"{where}/{prefix}".rstrip("/"), (where, given), timeout=timeout, patience=patience
        )

    _errors = (BaseError, OSError, ValueError)

    def _store(self, key: str, data: bytes, mode: Mapping[str, str] | str) -> dict[str, str] | None:
        how: Any = mode if isinstance(mode, str) else dict(mode)
        try:
            answer = obstore.put(self._bucket, key, data, mode=how, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return None
        except FileNotFoundError:
            if isinstance(mode, str):
                raise
            return None
        return _version(answer)

    def _fetch(self, key: str) -> StoredObject | None:
        try:
            answer = obstore.get(self._bucket, key)
            return StoredObject(bytes(answer.bytes()), _version(answer.meta))
        except FileNotFoundError:
            return None

    def _fetch_range(self, key: str, start: int, end: int) -> bytes | None:
        try:
            return bytes(obstore.get_range(self._bucket, key, start=start, end=end))
        except FileNotFoundError:
            return None

    def _list(self, prefix: str, after: str | None, size: int) -> list[ListedObject]:
        stream = obstore.list(self._bucket, prefix, offset=after, chunk_size=size)
        rows = next(iter(stream), ())
        return [ListedObject(row["path"], row["size"], row["last_modified"]) for row in rows]

    def _remove(self, keys: Sequence[str]) -> None:
        try:
            obstore.delete(self._bucket, list(keys))
        except FileNotFoundError:
            # Some stores stop at a key that is not there.
            for key in keys:
                with suppress(FileNotFoundError):
                    obstore.delete(self._bucket, key)

    def _duplicate(self, key: str, to: str) -> None:
        with suppress(FileNotFoundError):
            obstore.copy(self._bucket, key, to)

    def _failure(self, error: Exception) -> StorageError:
        text = _brief(error)
        if any(word in text for word in _FULL):
            return StorageFullError(f"{self.where} takes no more: {text}")
        if (
            isinstance(error, PermissionDeniedError | UnauthenticatedError)
            or "ExpiredToken" in text
        ):
            return StorageError(
                f"{self.where} refused: {text}",
                hint="check the credentials in the environment and what they allow",
            )
        if any(place in text for place in _ROLES):
            return StorageUnavailableError(
                f"{self.where}: no credentials are set, and this machine has no role: {text}",
                hint=_CREDENTIALS[self.where.partition(":")[0]],
            )
        if isinstance(error, FileNotFoundError):
            return StorageError(
                f"{self.where} is not there: {text}", hint="create the bucket or the container"
            )
        if "status code: 4" in text and not any(word in text for word in _AWAY):
            return StorageError(f"{self.where} failed: {text}")
        return StorageUnavailableError(
            f"{self.where} cannot be reached within {self.timeout:g} s: {text}"
        )


def _version(meta: Mapping[str, Any]) -> dict[str, str]:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


def _brief(error: Exception) -> str:
    """The first line of an error and the code in its answer, without secrets."""
    text = str(error).strip()
    code = re.search(r"<Code>(\w+)</Code>", text)
    line = text.partition("\n")[0].partition(": <")[0] + (f": {code[1]}" if code else "")
    return mask_url(line) or type(error).__name__
