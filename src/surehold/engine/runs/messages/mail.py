"""The mailbox of one run: messages that were not taken yet, by topic, in order."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable, Iterable

from surehold.core.records import Mailbox, Message


class Mail:
    """Messages of a run, each taken once and in the order of the journal.

    Safe for threads. A message whose id came before, which a sender has repeated, is dropped.
    """

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        """The place in the journal of the last message that was taken, by topic."""
        self.earlier: Callable[[], Iterable[Message]] | None = None
        """Reads the messages from before the notes that this execution has read; once."""
        self._kept: dict[str, list[tuple[int, Message]]] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._lock = threading.RLock()

    def add(self, message: Message) -> None:
        """Keep *message*, unless it was taken or is known."""
        with self._lock:
            key = message.topic, message.id
            if self._ids.setdefault(key, message.seq) != message.seq:
                return
            kept = self._kept.setdefault(message.topic, [])
            if message.seq > self.taken.get(message.topic, 0):
                entry = (message.seq, message)
                if not kept or kept[-1][0] < message.seq:
                    kept.append(entry)
                elif all(seq != message.seq for seq, _ in kept):
                    insort(kept, entry, key=lambda one: one[0])

    def set_taken(self, box: Mailbox) -> None:
        """Drop the messages that the journal records as taken."""
        with self._lock:
            self.taken = dict(box.taken)
            for topic, kept in self._kept.items():
                last = self.taken.get(topic, 0)
                self._kept[topic] = [one for one in kept if one[0] > last]

    def has(self, topic: str) -> bool:
        """True if a message of *topic* is there to be taken."""
        return bool(self._kept.get(topic))

    def take(self, topic: str) -> Message | None:
        """Take the next message of *topic*; None if there is none."""
        with self._lock:
            if self.earlier is not None:
                earlier, self.earlier = self.earlier, None
                for message in earlier():
                    self.add(message)
            kept = self._kept.get(topic)
            if not kept:
                return None
            seq, message = kept.pop(0)
            self.taken[topic] = seq
            return message

    def put_back(self, message: Message) -> None:
        """Undo the newest `take` of the topic of *message*."""
        with self._lock:
            kept = self._kept.setdefault(message.topic, [])
            insort(kept, (message.seq, message), key=lambda one: one[0])
            self.taken[message.topic] = message.seq - 1
