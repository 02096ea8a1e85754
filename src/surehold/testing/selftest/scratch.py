"""A scratch area for a storage in use: files beside it, or runs of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode
from uuid import uuid4

import msgspec

from surehold.errors import UsageError
from surehold.storage.addresses import StorageURL, place_of
from surehold.storage.base import RunQuery, Storage
from surehold.storage.registry import open_storage

_PREFIX = ".surehold-validation-"


class Scratch(msgspec.Struct, frozen=True):
    """The area in which the checks are made."""

    address: str
    medium: str
    """The scheme of its address."""
    directory: Path | None
    """Its own directory on the medium, where the medium is files."""
    prefix: str
    """The prefix of its runs' ids."""

    def open(self) -> Storage:
        """Open it."""
        return open_storage(self.address)

    def run_id(self, name: str) -> str:
        """The id of a run of that name here."""
        return f"{self.prefix}{name}"

    def files(self) -> list[Path]:
        """The files that it is in, the largest first."""
        if self.directory is None:
            return []
        found = [path for path in self.directory.rglob("*") if path.is_file()]
        return sorted(found, key=lambda path: path.stat().st_size, reverse=True)

    def copied_to(self, directory: Path) -> Scratch:
        """A copy of its files, to be spoilt."""
        assert self.directory is not None
        shutil.copytree(self.directory, directory)
        address = self.address.replace(_spelt(self.directory), _spelt(directory))
        return msgspec.structs.replace(self, address=address, directory=directory)


@contextmanager
def scratch_in(address: str) -> Iterator[Scratch]:
    """A scratch area of the storage at *address*, which is removed in the end."""
    url = StorageURL.parse(address)
    prefix = f"surehold-validation-{uuid4().hex[:8]}-"
    place = place_of(address)
    if place is None:
        try:
            yield Scratch(address, url.scheme, None, prefix)
        finally:
            if url.scheme != "memory":
                _clean(address, prefix)
        return
    place = place.absolute() if url.scheme == "file" else place.absolute().parent
    while not place.is_dir():
        place = place.parent
    try:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    except OSError as error:
        raise UsageError(
            f"no scratch area can be made in {place}: {error.strerror}",
            hint="give a storage in a directory that can be written to",
        ) from error
    options = f"?{urlencode(url.options)}" if url.options else ""
    inside = "runs.db" if url.scheme == "sqlite" else "runs"
    slashes = ":///" if url.scheme == "sqlite" else "://"
    made = f"{url.scheme}{slashes}{_spelt(directory)}/{inside}{options}"
    try:
        yield Scratch(made, url.scheme, directory, prefix)
    finally:
        shutil.rmtree(directory)


def _spelt(path: Path) -> str:
    return quote(str(path))


def _clean(address: str, prefix: str) -> None:
    with open_storage(address) as storage:
        for run in [*storage.runs(RunQuery())]:
            if run.run_id.startswith(prefix):
                storage.delete(run.run_id)
