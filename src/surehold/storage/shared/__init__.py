"""The rules of a journal that every medium follows, independent of any medium.

`decide_append` says whether a batch may be stored;
`Head` with `first_head`, `after_append`, `after_removal` and `rebuilt_head` account for a head
entry, which `run_info` shows to callers; `LeaseSlots` makes the `Leasing` ability of one atomic
read-modify-write; `facets_of` and `facets_in` say by which facets a record is found and which a
query asks for; `paged` turns a function that fetches a page into an iterator; `RunWatch` waits for
changes; `checked_run` and `check_head` are of repair. SQL, files and locks do not belong here:
what SQL media share is in `storage.rows`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
