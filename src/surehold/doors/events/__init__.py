"""Watching a run: observers and drift detection."""

from __future__ import annotations

from surehold.core.state import Event as Event
from surehold.core.state import Observer as Observer
from surehold.doors.events.drift_history import look_back as look_back
from surehold.doors.events.drift_watch import DriftWatch as DriftWatch
from surehold.doors.events.observers import Listener as Listener
from surehold.doors.events.observers import emitter as emitter
from surehold.doors.events.observers import register_observer as register_observer
from surehold.doors.events.observers import resolve_observers as resolve_observers
from surehold.doors.events.recorded_events import emit as emit
from surehold.doors.events.recorded_events import events as events
from surehold.doors.events.recorded_events import events_after as events_after
from surehold.doors.events.stream import EventStream as EventStream
from surehold.doors.events.stream import streamed as streamed
