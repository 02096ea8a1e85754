from holdfast.testing.contract.suite import StorageContract as StorageContract
