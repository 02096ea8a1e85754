"""The journal of one run: what an append contains, and how a state is read back.

Which requests are written together belongs to `engine.commit`, policy to `core.policy`.
"""

from __future__ import annotations

from surehold.engine.journal import changes as changes
from surehold.engine.journal.append import Journal as Journal
from surehold.engine.journal.append import Sent as Sent
from surehold.engine.journal.append import checkpoint_body as checkpoint_body
from surehold.engine.journal.append import commit as commit
from surehold.engine.journal.body import Body as Body
from surehold.engine.journal.body import read_body as read_body
from surehold.engine.journal.body import read_written as read_written
from surehold.engine.journal.changes import Change as Change
from surehold.engine.journal.changes import CheckpointFacts as CheckpointFacts
from surehold.engine.journal.changes import CheckpointMetadata as CheckpointMetadata
from surehold.engine.journal.changes import HistoryEntry as HistoryEntry
from surehold.engine.journal.changes import blame as blame
from surehold.engine.journal.changes import changes_between as changes_between
from surehold.engine.journal.changes import changes_in as changes_in
from surehold.engine.journal.changes import facts_of as facts_of
from surehold.engine.journal.changes import metadata_of as metadata_of
from surehold.engine.journal.delta_base import Cursor as Cursor
from surehold.engine.journal.delta_base import DeltaBase as DeltaBase
from surehold.engine.journal.delta_base import delta_base_of as delta_base_of
from surehold.engine.journal.draft import CheckpointDraft as CheckpointDraft
from surehold.engine.journal.draft import Saveable as Saveable
from surehold.engine.journal.draft import draft_of as draft_of
from surehold.engine.journal.draft import place_of as place_of
from surehold.engine.journal.draft import saved as saved
from surehold.engine.journal.draft import state_of as state_of
from surehold.engine.journal.draft import texts_of as texts_of
from surehold.engine.journal.notes import BRANCH as BRANCH
from surehold.engine.journal.notes import OpenNotes as OpenNotes
from surehold.engine.journal.notes import branch_note as branch_note
from surehold.engine.journal.notes import line_in as line_in
from surehold.engine.journal.notes import notes_in as notes_in
from surehold.engine.journal.notes import numbered_since as numbered_since
from surehold.engine.journal.notes import read_line as read_line
from surehold.engine.journal.notes import read_notes as read_notes
from surehold.engine.journal.notes import read_since as read_since
from surehold.engine.journal.notes import spans_to as spans_to
from surehold.engine.journal.reader import Loaded as Loaded
from surehold.engine.journal.reader import Reader as Reader
from surehold.engine.journal.reader import Tail as Tail
from surehold.engine.journal.reader import no_run as no_run
from surehold.engine.journal.reader import unknown_run as unknown_run
from surehold.engine.journal.redacting import Redacting as Redacting
from surehold.engine.journal.requests import Note as Note
from surehold.engine.journal.requests import Outcome as Outcome
from surehold.engine.journal.requests import Request as Request
