"""Leases of `FilesystemStorage`: small files, replaced whole under the run's lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from surehold.core.records import Lease, digest_of, medium_name
from surehold.errors import CorruptError
from surehold.storage.io import Folder, temporary

_LEASES = ".leases"


class _Kept(msgspec.Struct, frozen=True):
    lease: msgspec.Raw
    digest: str


def _file(run_id: str) -> str:
    return f"{medium_name(run_id)}.json"


def read_lease(root: Folder, run_id: str) -> Lease | None:
    """The run's newest lease."""
    data = None
    with suppress(FileNotFoundError), root.folder(_LEASES) as folder:
        data = folder.read(_file(run_id))
    if data is None:
        return None
    try:
        kept = msgspec.json.decode(data, type=_Kept)
        if digest_of(bytes(kept.lease)) == kept.digest:
            return msgspec.json.decode(kept.lease, type=Lease)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    raise CorruptError(
        f"the lease of run {run_id!r} is damaged",
        hint=f"stop what runs it, then remove {_LEASES}/{_file(run_id)}",
        run_id=run_id,
    )


def write_lease(root: Folder, lease: Lease) -> None:
    """Make this the run's newest lease. The run is held."""
    text = msgspec.json.encode(lease)
    data = msgspec.json.encode(_Kept(msgspec.Raw(text), digest_of(text)))
    with root.folder(_LEASES, create=True) as folder:
        folder.put(_file(lease.run_id), data + b"\n")


def leases_left_behind(root: Folder) -> Iterator[tuple[str, str, str]]:
    """Directory, name and run of every lease left incomplete by a dead writer."""
    if _LEASES not in root.names(directories=True):
        return
    with root.folder(_LEASES) as folder:
        names = folder.names()
    for name in names:
        medium = name.removeprefix(".").removesuffix(".json.tmp")
        if name == temporary(f"{medium}.json"):
            yield _LEASES, name, medium
