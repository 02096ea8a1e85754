"""Connections to Redis or Valkey: time limits, retries, Surehold's errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from surehold.errors import StorageError, StorageFullError, StorageUnavailableError, UsageError
from surehold.lazy import extra
from surehold.storage.addresses import mask_url
from surehold.storage.redis.acknowledgements import Acknowledgements
from surehold.storage.redis.scripts import Script
from surehold.storage.shared import patiently

with extra("redis", "Redis and Valkey storages need the package redis"):
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from surehold.storage.redis.slots import Slots

T = TypeVar("T")

Call = tuple[Any, ...]
"""A command with its arguments; or a script with its key and its arguments."""

_SCANNED = 4096
_CONNECT_SECONDS = 10.0
_AWAY = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.exceptions.AskError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.MovedError,
    redis.exceptions.TryAgainError,
)
_AWAY_WORDS = ("BUSY", "NOREPLICAS")
"""Errors, and first words of others, after which the same call may succeed."""
_REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM")
_REFUSALS = (
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
    redis.exceptions.NoPermissionError,
)
_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis+unix": "unix", "valkey+unix": "unix"}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PASSWORDS = ("REDISCLI_AUTH", "VALKEYCLI_AUTH")


class ServerConnections:
    """A pool that survives forks, server restarts, and unresponsive servers.

    A call that fails because the server is away, loading or failing over is repeated for up to
    *patience* seconds; an answer that takes longer than *timeout* seconds is given up.
    """

    def __init__(self, url: str, *, size: int, timeout: float, patience: float) -> None:
        self.awaited = Acknowledgements()
        """The acknowledgements that `store` waits for."""
        self.where = mask_url(url)
        self.timeout = timeout
        self._patience = patience
        self._closed = False
        self._cluster: Slots | None = None
        scheme, mark, rest = url.partition("://")
        scheme = _SCHEMES.get(scheme, scheme)
        options: dict[str, Any] = {"socket_timeout": timeout, "protocol": 2}
        options["retry"] = Retry(NoBackoff(), 0)
        if scheme != "unix":
            options["socket_connect_timeout"] = min(timeout, _CONNECT_SECONDS)
            options["socket_keepalive"] = True
        _check_address(url, self.where, is_socket=scheme == "unix")
        password = next(filter(None, map(os.environ.get, _PASSWORDS)), None)
        if password and urlsplit(url).password is None:
            options["password"] = password
        try:
            pool = redis.BlockingConnectionPool.from_url(
                f"{scheme}{mark}{rest}", max_connections=size, timeout=timeout, **options
            )
        except (ValueError, TypeError) as error:
            raise UsageError(f"{self.where} is not an address of a server: {error}") from None
        self._server = redis.Redis(connection_pool=pool)
        self._pool = pool

    def join_cluster(self) -> None:
        """Send every call to the server that has its key, from now on."""
        self._cluster = Slots(self._pool, self.where)

    def servers(self) -> list[Any]:
        """A client for every server that takes writes."""
        return [self._server] if self._cluster is None else self._cluster.clients()

    @property
    def is_encrypted(self) -> bool:
        """True if connections use TLS."""
        return issubclass(self._pool.connection_class, redis.SSLConnection)

    @property
    def is_local(self) -> bool:
        """True if connections do not leave this machine."""
        return self._pool.connection_kwargs.get("host", "localhost") in _LOOPBACK

    def own_client(self) -> Any:
        """A client with connections of its own, outside of the pool."""
        make: Any = redis.ConnectionPool
        options = self._pool.connection_kwargs
        pool = make(connection_class=self._pool.connection_class, **options)
        return redis.Redis.from_pool(pool)

    def run(self, work: Callable[[], T]) -> T:
        """Do *work*, and repeat it while the server is away.

        *work* must be safe to repeat whether or not an earlier attempt took effect.
        """
        return patiently(lambda: self.run_once(work), self._patience)

    def run_once(self, work: Callable[[], T]) -> T:
        """Do *work*, and fail at once if the server is away."""
        self.check_open()
        try:
            return work()
        except redis.RedisError as error:
            failure = self._translate(error)
            if self._cluster is not None and failure.retryable:
                with suppress(redis.RedisError, StorageUnavailableError):
                    self._cluster.refresh()
            raise failure from error

    def send(self, calls: Sequence[Call], *, wait: Call | None = None) -> list[Any]:
        """Send calls together; their answers in order, the first error raised.

        Calls to one server share a connection, on which *wait* follows them.
        """
        answers: list[Any] = [None] * len(calls)
        for server, places in self._by_server(calls):
            there = [calls[place] for place in places]
            found = _send(server, there, wait)
            if any(isinstance(answer, redis.exceptions.NoScriptError) for answer in found):
                # The server has restarted; every call may be repeated.
                for script in {call[0] for call in there if isinstance(call[0], Script)}:
                    server.script_load(script.text)
                found = _send(server, there, wait)
            for answer in found:
                if isinstance(answer, Exception):
                    raise answer
            if wait is not None and not self.awaited.is_met(found.pop()):
                raise StorageUnavailableError(
                    f"{self.where} did not get an append to disk and {self.awaited.replicas}"
                    f" replicas within {self.timeout:g} s"
                )
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers

    def store(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls that write, and wait until they are as durable as was asked for.

        A server waits for the writes of one connection only, so a repeated call must write too.
        """
        wait = self.awaited.command(self.timeout * 0.8)
        return self.run(lambda: self.send(calls, wait=wait)) if calls else []

    def scan(self, pattern: bytes) -> list[bytes]:
        """The names of all keys that match, of every server."""

        def work() -> list[bytes]:
            pages = (one.scan_iter(match=pattern, count=_SCANNED) for one in self.servers())
            return list(dict.fromkeys(key for page in pages for key in page))

        return self.run(work)

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

    def widen(self, size: int) -> None:
        """Allow so many connections, if that is more than now; a cluster has its own."""
        old = self._pool
        if size > old.max_connections and self._cluster is None:
            make: Any = redis.BlockingConnectionPool
            options = {"timeout": self.timeout, "connection_class": old.connection_class}
            self._pool = make(max_connections=size, **options, **old.connection_kwargs)
            self._server = redis.Redis(connection_pool=self._pool)
            old.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        self._pool.disconnect()
        if self._cluster is not None:
            self._cluster.close()

    def _by_server(self, calls: Sequence[Call]) -> Iterable[tuple[Any, Sequence[int]]]:
        """The servers that calls go to, each with the places of its calls."""
        if self._cluster is None:
            return [(self._server, range(len(calls)))]
        found: dict[int, tuple[Any, list[int]]] = {}
        for place, call in enumerate(calls):
            client = self._cluster.client(call[1])
            found.setdefault(id(client), (client, []))[1].append(place)
        return found.values()

    def _translate(self, error: redis.RedisError) -> StorageError:
        text = mask_url(str(error).strip().partition("\n")[0]) or type(error).__name__
        if isinstance(error, redis.exceptions.OutOfMemoryError) or text.startswith("OOM"):
            return StorageFullError(f"{self.where} has no memory left: {text}")
        if text.startswith("MISCONF"):
            return StorageFullError(f"{self.where} cannot write to its disk: {text}")
        if isinstance(error, _REFUSALS) or text.startswith(_REFUSED):
            return StorageError(
                f"{self.where} refused: {text}",
                hint="check user, password and rights; a password may also be in REDISCLI_AUTH",
            )
        if isinstance(error, redis.exceptions.ReadOnlyError) or text.startswith("READONLY"):
            return StorageUnavailableError(
                f"{self.where} is read-only: {text}", hint="connect to the primary, not a replica"
            )
        if isinstance(error, _AWAY) or text.startswith(_AWAY_WORDS):
            return StorageUnavailableError(f"{self.where} cannot be reached: {text}")
        return StorageError(f"{self.where} failed: {text}")


def _send(server: Any, calls: Sequence[Call], wait: Call | None) -> list[Any]:
    with server.pipeline(transaction=False) as pipe:
        for first, *arguments in calls:
            if isinstance(first, Script):
                pipe.execute_command("EVALSHA", first.digest, 1, *arguments)
            else:
                pipe.execute_command(first, *arguments)
        if wait is not None:
            pipe.execute_command(*wait)
        answers: list[Any] = pipe.execute(raise_on_error=False)
    return answers


def _check_address(url: str, where: str, *, is_socket: bool) -> None:
    """Refuse what the driver would pass over, or tell of as a failed connection."""
    parts = urlsplit(url)
    if not is_socket and not parts.path.strip("/").isdigit() and parts.path.strip("/"):
        raise UsageError(
            f"{where}: the path is the number of a database",
            hint="write redis://host:6379/0",
        )
    options = parse_qs(parts.query)
    for option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        for path in options.get(option, ()):
            if not os.path.exists(path):
                raise UsageError(f"there is no file {path}", hint=f"see {option}= of the address")
