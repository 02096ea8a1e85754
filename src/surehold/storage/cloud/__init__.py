"""Runs in S3, Google Cloud Storage or Azure Blob Storage, by obstore.

How a run is laid out in objects belongs into `storage.objects`. Needs the extra `objects`.
"""

from __future__ import annotations

from surehold.storage.cloud.storage import ObjectStorage as ObjectStorage
