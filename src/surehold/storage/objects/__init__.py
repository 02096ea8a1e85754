"""Runs as objects of a bucket, shared by many machines.

Every change of a run is one object, created at the next position of the run's log and only if
nothing is there: of two writers one wins, and a stale one collides. The
buckets are in `cloud` and `cosmos`; no package of theirs is imported here.
"""

from __future__ import annotations

from surehold.storage.objects.bucket import Bucket as Bucket
from surehold.storage.objects.bucket import ListedObject as ListedObject
from surehold.storage.objects.bucket import StoredObject as StoredObject
from surehold.storage.objects.storage import BucketStorage as BucketStorage
