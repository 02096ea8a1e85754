from surehold.storage.objects.bucket import Bucket as Bucket
from surehold.storage.objects.bucket import ListedObject as ListedObject
from surehold.storage.objects.bucket import StoredObject as StoredObject
from surehold.storage.objects.cloud import ObjectStorage as ObjectStorage
from surehold.storage.objects.storage import BucketStorage as BucketStorage
