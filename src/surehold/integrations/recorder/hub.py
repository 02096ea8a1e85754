"""The recording of a run, for other processes: a local socket."""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from surehold.errors import SureholdError
from surehold.integrations.recorder.inside import (
    answer_frame,
    answer_from,
    asked_from,
    serve_frames,
)
from surehold.integrations.recorder.recording import Recording

logger = logging.getLogger("surehold.recorder")
_Frame = tuple[dict[str, Any], list[bytes]]


class Hub:
    """Serves one recording to the processes of one start of a program.

    Processes of an earlier start have another socket, so they can write nothing more.
    """

    def __init__(self, recording: Recording, folder: Path) -> None:
        self.recording = recording
        self.path = str(folder / f"{os.getpid()}-{id(self):x}.sock")
        self._links: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        os.chmod(self.path, 0o600)
        self._listener.listen(128)
        self._thread = threading.Thread(target=self._accept, name="surehold-hub", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._links.add(link)
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        serve_frames(link, self._handle)
        with self._lock:
            self._links.discard(link)

    def _handle(self, facts: dict[str, Any], parts: list[bytes]) -> _Frame:
        try:
            return self._do(facts, parts)
        except SureholdError as error:
            hint = f" ({error.hint})" if error.hint else ""
            return {"failed": f"{error.message}{hint}"}, []
        except Exception as error:
            logger.exception("a call could not be recorded")
            return {"failed": f"{type(error).__name__}: {error}"}, []

    def _do(self, facts: dict[str, Any], parts: list[bytes]) -> _Frame:
        recording = self.recording
        match facts.pop("do"):
            case "claim":
                if facts.get("keeps"):
                    recording.keeps_state = facts["keeps"]
                claim = recording.claim(asked_from(facts, parts))
                told: dict[str, Any] = {"kind": claim.kind, "id": claim.id, "hold": claim.hold}
                told |= {"text": claim.text, "changed": claim.body is not None, "answer": None}
                if claim.answer is None:
                    return told, [claim.body] if claim.body is not None else []
                told["answer"], chunks = answer_frame(claim.answer)
                return told, chunks
            case "ready":
                return {"ready": recording.ready(facts["id"])}, []
            case "commit":
                recording.commit(facts["id"], answer_from(facts["answer"], parts))
            case "release":
                recording.release(facts["id"], facts["refused"])
            case "delivered":
                recording.delivered(facts["id"])
        return {}, []

    def close(self) -> None:
        """Answer nobody any more."""
        with suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            links = [*self._links]
        for link in links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            os.unlink(self.path)
