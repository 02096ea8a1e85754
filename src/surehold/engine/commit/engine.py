"""The engine of a storage: everyone who writes to the storage shares its commits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from surehold.engine.commit.group_commit import GroupCommit
from surehold.forks import register_at_fork
from surehold.storage.base import Storage

if TYPE_CHECKING:
    from surehold.engine.commit.face import Face


class Engine:
    """Commits what the threads and event loops of a process write to one storage.

    It keeps no reference to the storage, which is as long-lived as its users want: `engine_of`.
    """

    def __init__(self, *, parallel: bool) -> None:
        self.commits = GroupCommit(parallel=parallel)
        self.faces: WeakSet[Face] = WeakSet()
        """Everyone who writes through it."""

    def renew(self) -> None:
        """Start with free locks in the child of a fork, whose other threads are gone."""
        self.commits.renew()
        for face in [*self.faces]:
            face.renew_locks()


def engine_of(storage: Storage) -> Engine:
    """The engine of *storage*, made when it is first asked for."""
    with _making:
        engine = _engines.get(storage)
        if engine is None:
            _engines[storage] = engine = Engine(parallel=storage.appends_at_once > 1)
        return engine


_engines: WeakKeyDictionary[Storage, Engine] = WeakKeyDictionary()
_making = threading.Lock()


def _before_fork() -> None:
    _making.acquire()


def _after_in_parent() -> None:
    _making.release()


def _after_in_child() -> None:
    _making.release()
    for engine in [*_engines.values()]:
        engine.renew()


register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
