"""Changes of runs as the scripts publish them, on a connection of its own."""

from __future__ import annotations

import threading
from typing import Any

from surehold.storage.notifications import ChangeListener
from surehold.storage.redis.connections import ServerConnections
from surehold.storage.shared import to_text

_SLICE = 0.5


class RedisListener(ChangeListener):
    """Listens on *channel*, to which every append publishes the id of its run."""

    def __init__(self, db: ServerConnections, channel: bytes) -> None:
        super().__init__()
        self._db = db
        self._channel = channel

    def listen(self, stop: threading.Event) -> bool:
        with self._db.own_client() as client, client.pubsub() as heard:
            heard.subscribe(self._channel)
            # It comes back if this user may publish, which the scripts then do too.
            client.publish(self._channel, b"")
            while not stop.is_set():
                message: Any = heard.get_message(ignore_subscribe_messages=True, timeout=_SLICE)
                if message is None:
                    continue
                self.is_live = True
                self.tell(to_text(message["data"]) if message["data"] else None)
        return True
