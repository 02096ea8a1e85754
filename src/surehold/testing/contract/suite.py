"""The contract of `Storage` and its abilities as tests: one per promise.

```python
class TestMyStorage(StorageContract):
    def open(self, directory: Path) -> Storage:
        return MyStorage(directory / "runs.mine")
```

Run with pytest, it opens the medium many times, from threads and from processes of its own, and
holds it to every promise that `surehold.storage.base` makes. The class must stand at the top of
its module and be made without arguments: a child process makes its own to open the medium.
"""

from __future__ import annotations

from surehold.testing.contract.appending import AppendPromises
from surehold.testing.contract.deleting import DeletePromises, IsolationPromises
from surehold.testing.contract.leasing import LeasePromises
from surehold.testing.contract.listing import FindPromises, ListPromises
from surehold.testing.contract.queueing import QueuePromises
from surehold.testing.contract.repairing import RepairPromises
from surehold.testing.contract.running import RunPromises
from surehold.testing.contract.sharing import SharingPromises
from surehold.testing.contract.watching import WatchPromises


class StorageContract(
    AppendPromises,
    ListPromises,
    FindPromises,
    RunPromises,
    DeletePromises,
    IsolationPromises,
    SharingPromises,
    LeasePromises,
    QueuePromises,
    RepairPromises,
    WatchPromises,
):
    """The tests that every medium passes; a subclass opens the medium.

    `survives = False` is for a medium that ends with its storage, `leases = False` and
    `repairs = False` for one without `Leasing` or `Repairable`, `notifies = False` for one whose
    notifications do not arrive. `clean` removes what a test stored.
    """
