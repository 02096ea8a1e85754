"""A group in one file: the exports of its runs and of its own run."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from surehold.engine.groups.definition import Group
from surehold.engine.managers import CheckpointManager, Target, manager_for
from surehold.engine.transfer import whole_file
from surehold.errors import CorruptError, SureholdError, UsageError

_MANIFEST = "group.json"


class _Contents(msgspec.Struct, forbid_unknown_fields=True):
    group: str
    runs: list[str]
    """In the order of their files, the run of the group last."""


def export_group(
    manager: CheckpointManager,
    name: str,
    runs: Sequence[str],
    path: str | os.PathLike[str],
    *,
    overwrite: bool,
) -> None:
    """Write these runs, the group's own last, to one file: whole or not at all."""
    with (
        whole_file(Path(path), overwrite=overwrite) as packed,
        zipfile.ZipFile(packed, "x") as archive,
    ):
        archive.writestr(_MANIFEST, msgspec.json.encode(_Contents(name, [*runs])))
        for number, run_id in enumerate(runs):
            one = packed.with_name(f"{number}.surehold")
            manager.export_run(run_id, one)
            archive.write(one, one.name)
            one.unlink()


def import_group(path: str | os.PathLike[str], *, storage: Target = None) -> Group:
    """Take in a group that `Group.export` wrote: all of its runs, or none.

    The run that keeps the group's checkpoints comes last, so there is no such group before all
    members are there.
    """
    manager = manager_for(storage)
    made: list[str] = []
    try:
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as scratch:
            contents = msgspec.json.decode(archive.read(_MANIFEST), type=_Contents)
            for run_id in contents.runs:
                if manager.reader.run(run_id) is not None:
                    raise UsageError(
                        f"there is a run {run_id!r} already",
                        hint="import the group into another storage",
                    )
            for number, run_id in enumerate(contents.runs):
                one = archive.extract(f"{number}.surehold", scratch)
                made.append(manager.import_run(one, run_id))
    except (zipfile.BadZipFile, KeyError, msgspec.MsgspecError) as error:
        raise CorruptError(f"{os.fspath(path)} is not an exported group: {error}") from error
    except SureholdError:
        for run_id in made:
            manager.delete_run(run_id)
        raise
    return Group(contents.group, storage=manager)
