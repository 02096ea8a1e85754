from surehold.testing.contract.suite import StorageContract as StorageContract
