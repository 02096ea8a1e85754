"""Records as values: headers, ids, digests, frames, leases.

Nothing here reads or writes a medium.
"""

from __future__ import annotations

from surehold.core.records import frame as frame
from surehold.core.records.chain import Chain as Chain
from surehold.core.records.chain import Gap as Gap
from surehold.core.records.chain import chained as chained
from surehold.core.records.chain import read_prune_note as read_prune_note
from surehold.core.records.doors import MANAGER as MANAGER
from surehold.core.records.doors import Door as Door
from surehold.core.records.doors import DoorKind as DoorKind
from surehold.core.records.doors import derived_door as derived_door
from surehold.core.records.frame import BODY_LIMIT as BODY_LIMIT
from surehold.core.records.frame import NONCE_BYTES as NONCE_BYTES
from surehold.core.records.frame import Kdf as Kdf
from surehold.core.records.frame import KeyNote as KeyNote
from surehold.core.records.frame import bad_key_note as bad_key_note
from surehold.core.records.frame import compress as compress
from surehold.core.records.frame import data_key_check as data_key_check
from surehold.core.records.frame import decompress as decompress
from surehold.core.records.frame import decrypt_body as decrypt_body
from surehold.core.records.frame import encrypt_body as encrypt_body
from surehold.core.records.frame import is_encrypted as is_encrypted
from surehold.core.records.frame import read_key_note as read_key_note
from surehold.core.records.ids import check_run_id as check_run_id
from surehold.core.records.ids import medium_name as medium_name
from surehold.core.records.lease import Lease as Lease
from surehold.core.records.lease import Owner as Owner
from surehold.core.records.lease import check_free as check_free
from surehold.core.records.lease import released as released
from surehold.core.records.lease import renewed as renewed
from surehold.core.records.lease import taken as taken
from surehold.core.records.notes import NOTE_KINDS as NOTE_KINDS
from surehold.core.records.notes import Answer as Answer
from surehold.core.records.notes import Attributes as Attributes
from surehold.core.records.notes import Effect as Effect
from surehold.core.records.notes import Heartbeat as Heartbeat
from surehold.core.records.notes import Item as Item
from surehold.core.records.notes import Mailbox as Mailbox
from surehold.core.records.notes import Message as Message
from surehold.core.records.notes import Published as Published
from surehold.core.records.notes import Question as Question
from surehold.core.records.notes import Timer as Timer
from surehold.core.records.ranges import Range as Range
from surehold.core.records.ranges import covers as covers
from surehold.core.records.ranges import gaps_between as gaps_between
from surehold.core.records.ranges import merge_ranges as merge_ranges
from surehold.core.records.ranges import ranges_of as ranges_of
from surehold.core.records.ranges import subtract_ranges as subtract_ranges
from surehold.core.records.record import OPEN_FROM as OPEN_FROM
from surehold.core.records.record import OVER as OVER
from surehold.core.records.record import STATUSES as STATUSES
from surehold.core.records.record import Frame as Frame
from surehold.core.records.record import Header as Header
from surehold.core.records.record import Record as Record
from surehold.core.records.record import digest_of as digest_of
from surehold.core.records.record import new_id as new_id
from surehold.core.records.record import open_header as open_header
from surehold.core.records.record import open_record as open_record
from surehold.core.records.record import read_status as read_status
from surehold.core.records.record import seal as seal
from surehold.core.records.record import seal_new as seal_new
from surehold.core.records.record import with_body as with_body
