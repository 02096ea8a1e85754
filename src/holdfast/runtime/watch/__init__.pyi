from holdfast.runtime.watch.drift import DriftWatch as DriftWatch
from holdfast.runtime.watch.drift_history import look_back as look_back
from holdfast.runtime.watch.observers import Event as Event
from holdfast.runtime.watch.observers import Observer as Observer
from holdfast.runtime.watch.observers import emitter as emitter
from holdfast.runtime.watch.observers import register_observer as register_observer
from holdfast.runtime.watch.observers import resolve_observers as resolve_observers
from holdfast.runtime.watch.stream import EventStream as EventStream
