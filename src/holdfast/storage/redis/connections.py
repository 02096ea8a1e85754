"""Connections to a Redis or Valkey server: time limits, repeats, errors in Holdfast's own terms."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from holdfast.errors import (
    MissingExtraError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    UsageError,
)
from holdfast.storage.addresses import mask_url
from holdfast.storage.redis.scripts import Script

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as missing:
    raise MissingExtraError(
        "Redis and Valkey storages need the package redis", hint="pip install 'holdfast[redis]'"
    ) from missing

__all__ = ["Call", "ServerConnections"]

T = TypeVar("T")

Call = tuple[Any, ...]
"""A command with its arguments; or a script with its key and its arguments."""

_CONNECT_SECONDS = 10.0
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0
_AWAY = ("LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS")
"""First words of errors after which the same call may succeed."""
_REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM")
_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis+unix": "unix", "valkey+unix": "unix"}
_PASSWORDS = ("REDISCLI_AUTH", "VALKEYCLI_AUTH")


class ServerConnections:
    """A pool that survives forks, restarts of the server, and servers that stop answering.

    A call that fails because the server is away, loading or failing over is repeated for up to
    *patience* seconds; an answer that takes longer than *timeout* seconds is given up.
    """

    def __init__(self, url: str, *, size: int, timeout: float, patience: float) -> None:
        self.where = mask_url(url)
        self.timeout = timeout
        self._patience = patience
        self._closed = False
        scheme, mark, rest = url.partition("://")
        scheme = _SCHEMES.get(scheme, scheme)
        options: dict[str, Any] = {"socket_timeout": timeout, "protocol": 2}
        options["retry"] = Retry(NoBackoff(), 0)
        if scheme != "unix":
            options["socket_connect_timeout"] = min(timeout, _CONNECT_SECONDS)
            options["socket_keepalive"] = True
        password = next(filter(None, map(os.environ.get, _PASSWORDS)), None)
        if password and urlsplit(url).password is None:
            options["password"] = password
        try:
            pool = redis.BlockingConnectionPool.from_url(
                f"{scheme}{mark}{rest}", max_connections=size, timeout=timeout, **options
            )
        except (ValueError, TypeError) as error:
            raise UsageError(f"{self.where} is no address of a server: {error}") from None
        self.server = redis.Redis(connection_pool=pool)
        self._pool = pool

    def run(self, work: Callable[[], T]) -> T:
        """Do *work*, and repeat it while the server is away.

        *work* must be safe to repeat whether or not an earlier attempt took effect.
        """
        give_up = time.monotonic() + self._patience
        wait = _FIRST_WAIT
        while True:
            try:
                return self.run_once(work)
            except StorageUnavailableError:
                if time.monotonic() + wait > give_up:
                    raise
            time.sleep(wait * (0.5 + random.random()))
            wait = min(2 * wait, _LONGEST_WAIT)

    def run_once(self, work: Callable[[], T]) -> T:
        """Do *work*, and fail at once if the server is away."""
        self.check_open()
        try:
            return work()
        except redis.RedisError as error:
            raise self._translate(error) from error

    def send(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls together on one connection; their answers in order, the first error raised."""
        answers = self._send(calls)
        if any(isinstance(answer, redis.exceptions.NoScriptError) for answer in answers):
            # The server has restarted; every call may be repeated.
            for script in {call[0] for call in calls if isinstance(call[0], Script)}:
                self.server.script_load(script.text)
            answers = self._send(calls)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def ask(self, *call: Any) -> Any:
        """Send one call and repeat it while the server is away."""
        return self.run(lambda: self.send([call]))[0]

    def ask_all(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls together and repeat them while the server is away."""
        return self.run(lambda: self.send(calls)) if calls else []

    def check_open(self) -> None:
        """Raise a `UsageError` if the storage was closed."""
        if self._closed:
            raise UsageError("the storage is closed", hint="open it again")

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        self._pool.disconnect()

    def _send(self, calls: Sequence[Call]) -> list[Any]:
        pipe: Any
        with self.server.pipeline(transaction=False) as pipe:
            for first, *arguments in calls:
                if isinstance(first, Script):
                    pipe.execute_command("EVALSHA", first.digest, 1, *arguments)
                else:
                    pipe.execute_command(first, *arguments)
            answers: list[Any] = pipe.execute(raise_on_error=False)
        return answers

    def _translate(self, error: redis.RedisError) -> StorageError:
        text = mask_url(str(error).strip().partition("\n")[0]) or type(error).__name__
        if isinstance(error, redis.exceptions.OutOfMemoryError) or text.startswith("OOM"):
            return StorageFullError(f"{self.where} has no memory left: {text}")
        if text.startswith("MISCONF"):
            return StorageFullError(f"{self.where} cannot write to its disk: {text}")
        if isinstance(
            error, redis.exceptions.AuthenticationError | redis.exceptions.AuthorizationError
        ) or text.startswith(_REFUSED):
            return StorageError(
                f"{self.where} refused: {text}",
                hint="check user, password and rights; a password may also be in REDISCLI_AUTH",
            )
        if isinstance(error, redis.exceptions.ReadOnlyError) or text.startswith("READONLY"):
            return StorageUnavailableError(
                f"{self.where} is read-only: {text}", hint="connect to the primary, not a replica"
            )
        away = (redis.ConnectionError, redis.TimeoutError)
        if isinstance(error, away) or text.startswith(_AWAY):
            return StorageUnavailableError(f"{self.where} cannot be reached: {text}")
        return StorageError(f"{self.where} failed: {text}")
