from holdfast.storage.objects.bucket import Bucket as Bucket
from holdfast.storage.objects.bucket import ListedObject as ListedObject
from holdfast.storage.objects.bucket import StoredObject as StoredObject
from holdfast.storage.objects.cloud import ObjectStorage as ObjectStorage
from holdfast.storage.objects.storage import BucketStorage as BucketStorage
