"""The contract of `Storage` and its abilities as tests: one per promise.

```python
class TestMyStorage(StorageContract):
    def open(self, directory: Path) -> Storage:
        return MyStorage(directory / "runs.mine")
```

Run with pytest, it opens the medium many times, from threads and from processes of its own, and
holds it to every promise that `holdfast.storage.base` makes. The class must stand at the top of
its module and be made without arguments: a child process makes its own to open the medium.
"""

from __future__ import annotations

from holdfast.testing.contract.appending import AppendPromises
from holdfast.testing.contract.deleting import DeletePromises, IsolationPromises
from holdfast.testing.contract.leasing import LeasePromises
from holdfast.testing.contract.listing import FindPromises, ListPromises
from holdfast.testing.contract.queueing import QueuePromises
from holdfast.testing.contract.repairing import RepairPromises
from holdfast.testing.contract.running import RunPromises
from holdfast.testing.contract.sharing import SharingPromises
from holdfast.testing.contract.watching import WatchPromises


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
