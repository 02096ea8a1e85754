from holdfast.storage.objects.storage import ObjectStorage as ObjectStorage
