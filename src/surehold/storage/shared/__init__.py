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

from surehold.storage.shared.append_rules import cannot_erase as cannot_erase
from surehold.storage.shared.append_rules import decide_append as decide_append
from surehold.storage.shared.append_rules import following as following
from surehold.storage.shared.append_rules import may_be_retry as may_be_retry
from surehold.storage.shared.compression import read_compression as read_compression
from surehold.storage.shared.damage import Sparing as Sparing
from surehold.storage.shared.damage import about_record as about_record
from surehold.storage.shared.damage import check_format as check_format
from surehold.storage.shared.damage import misplaced as misplaced
from surehold.storage.shared.damage import missing as missing
from surehold.storage.shared.damage import passed_over as passed_over
from surehold.storage.shared.damage import run_missing as run_missing
from surehold.storage.shared.diagnosis import measure as measure
from surehold.storage.shared.facets import COMMON_KIND as COMMON_KIND
from surehold.storage.shared.facets import Facet as Facet
from surehold.storage.shared.facets import common_facets as common_facets
from surehold.storage.shared.facets import facets_in as facets_in
from surehold.storage.shared.facets import facets_of as facets_of
from surehold.storage.shared.heads import SAVED_BY_HAND as SAVED_BY_HAND
from surehold.storage.shared.heads import Head as Head
from surehold.storage.shared.heads import after_append as after_append
from surehold.storage.shared.heads import after_removal as after_removal
from surehold.storage.shared.heads import first_head as first_head
from surehold.storage.shared.heads import rebuilt_head as rebuilt_head
from surehold.storage.shared.heads import run_info as run_info
from surehold.storage.shared.leasing import LeaseSlots as LeaseSlots
from surehold.storage.shared.leasing import SwappedLeases as SwappedLeases
from surehold.storage.shared.leasing import take as take
from surehold.storage.shared.paging import bound_of as bound_of
from surehold.storage.shared.paging import newest_of_ids as newest_of_ids
from surehold.storage.shared.paging import paged as paged
from surehold.storage.shared.patience import patiently as patiently
from surehold.storage.shared.queue_slots import LeasedQueueTable as LeasedQueueTable
from surehold.storage.shared.queue_slots import QueueSlots as QueueSlots
from surehold.storage.shared.queue_slots import QueueTable as QueueTable
from surehold.storage.shared.queue_slots import apply_change as apply_change
from surehold.storage.shared.repair import Salvage as Salvage
from surehold.storage.shared.repair import check_head as check_head
from surehold.storage.shared.repair import checked_run as checked_run
from surehold.storage.shared.repair import inspect_missing as inspect_missing
from surehold.storage.shared.repair import moment as moment
from surehold.storage.shared.repair import unlisted as unlisted
from surehold.storage.shared.stored_text import run_number as run_number
from surehold.storage.shared.stored_text import to_bytes as to_bytes
from surehold.storage.shared.stored_text import to_text as to_text
from surehold.storage.shared.watching import RunWatch as RunWatch
