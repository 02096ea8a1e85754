"""Operations of the managers, and the commits that all writers of a storage share.

An operation that saves is a generator: it asks for commits, hooks and pauses, which a blocking or
an awaiting driver carries out. One that only reads is a plain function.
"""

from __future__ import annotations

from surehold.engine.commit import delete as delete
from surehold.engine.commit import load as load
from surehold.engine.commit import read as read
from surehold.engine.commit import rotation as rotation
from surehold.engine.commit.delete import mark_note as mark_note
from surehold.engine.commit.engine import Engine as Engine
from surehold.engine.commit.engine import engine_of as engine_of
from surehold.engine.commit.face import Face as Face
from surehold.engine.commit.group_commit import GroupCommit as GroupCommit
from surehold.engine.commit.group_commit import perform as perform
from surehold.engine.commit.save import WARNED as WARNED
from surehold.engine.commit.save import append_notes as append_notes
from surehold.engine.commit.save import erase as erase
from surehold.engine.commit.save import save_draft as save_draft
from surehold.engine.commit.save import save_state as save_state
from surehold.engine.commit.settings import OnSaveFailure as OnSaveFailure
from surehold.engine.commit.settings import RunSettings as RunSettings
from surehold.engine.commit.steps import Commit as Commit
from surehold.engine.commit.steps import Fire as Fire
from surehold.engine.commit.steps import Pause as Pause
from surehold.engine.commit.steps import Step as Step
from surehold.engine.commit.steps import Steps as Steps
from surehold.engine.commit.steps import Work as Work
from surehold.engine.commit.together import append_together as append_together
from surehold.engine.commit.together import save_together as save_together
from surehold.engine.commit.writer_thread import Writer as Writer
from surehold.engine.commit.writer_thread import await_uncancelled as await_uncancelled
from surehold.engine.commit.writer_thread import call_beside as call_beside
from surehold.engine.commit.writer_thread import in_event_loop as in_event_loop
from surehold.engine.commit.writer_thread import in_thread as in_thread
