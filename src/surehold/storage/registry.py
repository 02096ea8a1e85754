"""Storages by address: a URL, a registered name, or the default."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import quote, urlencode

from surehold.config import DEFAULT_ADDRESS, VARIABLE, Config, read_config
from surehold.errors import (
    CorruptError,
    NotFoundError,
    StorageError,
    StorageUnavailableError,
    SureholdError,
    UsageError,
)
from surehold.storage.addresses import (
    EXPORTED,
    StorageURL,
    beside,
    has_scheme,
    mask_url,
    nearest,
    url_for_path,
)
from surehold.storage.base import Storage

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from surehold.storage.memory import StateStore

logger = logging.getLogger("surehold.storage")

_GROUP = "surehold.storages"
_ALIASES = {
    "postgres": "postgresql",
    **dict.fromkeys(("rediss", "redis+unix", "valkey", "valkeys", "valkey+unix"), "redis"),
}
_SPELLINGS = {"sqlite3": "sqlite", "mem": "memory"}


def open_storage(address: str | Storage | None = None) -> Storage:
    """The storage that *address* names.

    - ``memory://``: a new one in memory. The name ``memory``: the one that this process shares.
    - ``sqlite:///runs.db``, relative to the working directory; ``sqlite:////srv/runs.db``.
    - ``file:runs`` or ``file://./runs``, relative; ``file:///srv/runs``.
    - ``postgresql://user@host/database``, with libpq's options and ``schema=``, ``pool=``,
      ``timeout=``, ``patience=``, ``upgrade=``; needs the extra `postgres`.
    - ``redis://user@host:6379/0``, ``rediss://`` with TLS, ``valkey://``, ``redis+unix:///socket``,
      with ``prefix=``, ``durability=``, ``replicas=``, ``pool=``, ``timeout=``, ``patience=``;
      needs the extra `redis`.
    - ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, with
      ``endpoint=``, ``region=``, ``timeout=``, ``patience=``; needs the extra `objects`.
    - ``cosmos://account/database/container``, with ``endpoint=``, ``timeout=``, ``patience=``;
      needs the extra `cosmos`.
    - All of them take ``?compress=gzip``, ``zstd`` or ``false``; only files are plain by default.
      ``redundancy=1`` keeps a second, compressed copy of every record beside the first: a damaged
      record is made whole from it, and costs nothing.
    - ``resilient:sqlite:///runs.db|file:copy``: a `ResilientStorage` over these, the primary first.
    - the path of an exported run, ``nightly.surehold``.
    - a name given to `register_checkpoint_store`, or a scheme that an installed package brings.
    - None: the environment variable SUREHOLD_STORAGE, else ``storage`` of the nearest
      `surehold.toml` in the working directory or above, else `DEFAULT_ADDRESS`.
    - a storage: itself. A `StateStore` (save, load, delete, list): a storage over it.

    Every call with a URL opens the storage anew, and the caller closes it. Anything else is a
    `NotFoundError` or a `UsageError` that says what there is.
    """
    if isinstance(address, Storage):
        return address
    if address is not None:
        return _of_store(address) if _is_store(address) else _open(address)
    configured, origin = _configured()
    try:
        return _open(configured)
    except SureholdError as error:
        if origin != "default":
            error.add_note(f"the address comes from {origin}")
        raise


def default_address() -> str:
    """The address of the storage that is used where none is given."""
    return _configured()[0]


def _configured() -> tuple[str, str]:
    if os.environ.get(VARIABLE):  # a settings file is then not even read
        return configured_storage(os.environ, Path(), Config())
    directory = Path.cwd()
    return configured_storage(os.environ, directory, read_config(directory))


def configured_storage(
    environ: Mapping[str, str], directory: Path, config: Config
) -> tuple[str, str]:
    """The default address and its origin: the environment, *config*, or ``default``.

    A relative path in *config* starts at its file, and in the environment at *directory*.
    """
    if given := environ.get(VARIABLE):
        return given, VARIABLE
    if config.file is not None and config.storage is not None:
        base = None if config.file.parent == directory else config.file.parent
        return beside(config.storage, base), str(config.file)
    return DEFAULT_ADDRESS, "default"


def _is_no_address(given: Any) -> UsageError:
    what = type(given).__name__
    if isinstance(getattr(given, "storage", None), Storage):
        return UsageError(f"a {what} is not a storage", hint="give its storage: manager.storage")
    return UsageError(f"a storage's address is a text, not {what}", hint=_examples())


def _open(address: str) -> Storage:
    if isinstance(address, os.PathLike):
        raise _is_a_path(os.fsdecode(address))
    if not isinstance(address, str):
        raise _is_no_address(address)
    if has_scheme(address):
        return _open_url(StorageURL.parse(address))
    if address.endswith(EXPORTED) and os.path.isfile(address):
        return _open_url(StorageURL.parse(f"sqlite:///{quote(address)}"))
    return get_checkpoint_store(address)


def register_checkpoint_store(
    name: str, storage: Storage | StateStore | Callable[[], Storage | StateStore]
) -> None:
    """Register *storage* as *name*; one of that name is replaced, not closed.

    A factory is called when the name is first used, and once. An object with the four methods of a
    `StateStore` (save, load, delete, list) is taken too, see `StateStoreStorage`.

    >>> from surehold.storage.memory import MemoryStorage
    >>> register_checkpoint_store("scratch", MemoryStorage)
    >>> get_checkpoint_store("scratch") is open_storage("scratch")
    True
    """
    if not isinstance(name, str):
        raise UsageError(f"the name of a storage must be a string, not {type(name).__name__}")
    if not name.strip():
        raise UsageError("the name of a storage must not be empty")
    if ":" in name:
        raise UsageError(f"{mask_url(name)!r} reads as a URL", hint="choose a name without a colon")
    if not isinstance(storage, Storage) and not callable(storage) and not _is_store(storage):
        raise UsageError(
            f"{name!r} must be a Storage or a function that makes one, not"
            f" {type(storage).__name__}",
            hint="an object with the methods save, load, delete and list is taken too",
        )
    entry = _Named(name, storage)
    with _lock:
        _named[name] = entry


def get_checkpoint_store(name: str) -> Storage:
    """The storage registered as *name*; else a `NotFoundError` that lists all."""
    with _lock:
        entry = _named.get(name)
    if entry is None:
        raise _unknown_name(name)
    return entry.open()


def checkpoint_stores() -> tuple[str, ...]:
    """The registered names, sorted.

    >>> "memory" in checkpoint_stores()
    True
    """
    with _lock:
        return tuple(sorted(_named))


class _Named:
    """A registered storage, or one to be made on first use."""

    def __init__(
        self, name: str, storage: Storage | StateStore | Callable[[], Storage | StateStore]
    ) -> None:
        self._name = name
        self._storage = storage
        self._lock = threading.RLock()

    def open(self) -> Storage:
        with self._lock:
            made = self._storage
            if not isinstance(made, Storage):
                if not _is_store(made):
                    made = made()  # type: ignore[operator]
                self._storage = made = _checked(made, f"the factory of {self._name!r}")
            return made


def _is_store(thing: object) -> bool:
    from surehold.storage.memory import StateStore

    made = not isinstance(thing, type) and not isinstance(thing, Storage)
    return made and isinstance(thing, StateStore)


def _of_store(store: Any) -> Storage:
    """The one storage over *store*: two of them would overwrite each other."""
    from surehold.storage.memory import StateStoreStorage

    with _lock:
        known = _stores.get(id(store))
        if known is None:
            known = _stores[id(store)] = StateStoreStorage(store)
        return known


def _memory() -> Storage:
    from surehold.storage.memory import MemoryStorage

    return MemoryStorage()


_lock = threading.RLock()
_stores: dict[int, Storage] = {}
"""By identity of the store, which the storage keeps alive."""
_named: dict[str, _Named] = {"memory": _Named("memory", _memory)}


def _open_memory(url: StorageURL) -> Storage:
    url.check_options()
    if url.host or url.path:
        raise UsageError(
            f"{url} names a place, and memory has none",
            hint="memory:// opens a new one; the name memory is the one that this process shares",
        )
    return _memory()


def _compression(url: StorageURL, default: str = "zstd") -> bool | str:
    compress = url.options.get("compress", default)
    if compress not in _COMPRESS:
        raise UsageError(
            f"compress={compress} is not known",
            hint=f"{nearest(compress, _COMPRESS)}it can be: {', '.join(_COMPRESS)}",
            option="compress",
        )
    return _COMPRESS[compress]


def _open_sqlite(url: StorageURL) -> Storage:
    url.check_options("compress", "redundancy")
    compress = _compression(url)
    file = url.path.removeprefix("/")
    if url.host != "" or not file or file.endswith("/"):
        right = str(url).partition(":")[2].strip("/") or "runs.db"
        raise UsageError(
            f"{url} names no file",
            hint=f"write sqlite:///{right}, with a fourth slash for a path from the root",
        )
    if file == ":memory:":
        raise UsageError(f"{url} would be lost on closing", hint="write memory://")
    from surehold.storage.sqlite import SQLiteStorage

    return SQLiteStorage(file, compress=compress)


def _open_file(url: StorageURL) -> Storage:
    url.check_options("compress", "redundancy")
    compress = _compression(url, "false")
    path = f"{url.host}{url.path}" if url.host in (".", "..") else url.path
    if url.host not in (None, "", ".", "..") or not path.strip("/"):
        right = str(url).partition("?")[0].partition(":")[2].strip("/") or "runs"
        raise UsageError(
            f"{url} names no directory of this machine",
            hint=f"write file:{right}, or file:///{right} for a path from the root",
        )
    from surehold.storage.files import FilesystemStorage

    return FilesystemStorage(path, compress=compress)


def _open_postgres(url: StorageURL) -> Storage:
    """Take our own options out; all others are libpq's and go to the driver."""
    from surehold.storage.postgres import PostgresStorage

    own = {"schema", "pool", "compress", "timeout", "patience", "upgrade"}
    return PostgresStorage(
        _with_options(url, url.options.keys() - own),
        schema=url.options.get("schema", "surehold"),
        pool=_number(url, "pool", 0) if "pool" in url.options else None,
        upgrade=_yes(url, "upgrade"),
        **_of_server(url),
    )


def _with_options(url: StorageURL, kept: Set[str]) -> str:
    """The address with some of its options only."""
    rest = {key: value for key, value in url.options.items() if key in kept}
    return url.full.partition("?")[0] + (f"?{urlencode(rest, quote_via=quote)}" if rest else "")


def _yes(url: StorageURL, option: str) -> bool:
    given = url.options.get(option, "true")
    if given not in ("true", "false"):
        raise UsageError(f"{option}={given} is not known", hint=f"give {option}=true or false")
    return given == "true"


def _open_redis(url: StorageURL) -> Storage:
    """Take our own options out; those of TLS go to the server's driver."""
    own = ("prefix", "durability", "replicas", "pool", "compress", "timeout", "patience")
    driver = ("db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
    url.check_options(*own, *driver, "redundancy")
    from surehold.storage.redis import RedisStorage

    return RedisStorage(
        _with_options(url, {*driver}),
        prefix=url.options.get("prefix", "surehold"),
        durability=cast(Literal["disk", "relaxed"], url.options.get("durability", "disk")),
        replicas=_number(url, "replicas", 0),
        pool=_number(url, "pool", 0) if "pool" in url.options else None,
        **_of_server(url),
    )


def _open_objects(url: StorageURL) -> Storage:
    url.check_options("endpoint", "region", "compress", "timeout", "patience", "redundancy")
    from surehold.storage.cloud import ObjectStorage

    return ObjectStorage(
        f"{url.scheme}://{url.host or ''}{url.path}",
        endpoint=url.options.get("endpoint"),
        region=url.options.get("region"),
        **_of_server(url),
    )


def _open_cosmos(url: StorageURL) -> Storage:
    url.check_options("endpoint", "compress", "timeout", "patience", "redundancy")
    from surehold.storage.cosmos import CosmosStorage

    return CosmosStorage(
        f"{url.scheme}://{url.host or ''}{url.path}",
        endpoint=url.options.get("endpoint"),
        **_of_server(url),
    )


def _of_server(url: StorageURL) -> dict[str, Any]:
    """The options that every storage on a server has."""
    waits = {option: _number(url, option, 30.0) for option in ("timeout", "patience")}
    return {"compress": _compression(url), **waits}


def _number(url: StorageURL, option: str, default: int | float) -> Any:
    """An option as a number of the type that its *default* has."""
    try:
        return type(default)(url.options.get(option, default))
    except ValueError as error:
        what = "seconds" if isinstance(default, float) else "a whole number"
        raise UsageError(
            f"an option of {url} is not a number: {error}", hint=f"{option} takes {what}"
        ) from None


def _open_resilient(url: StorageURL) -> Storage:
    """The addresses stand one after another, each as it would stand alone."""
    parts = url.full.partition(":")[2].split("|")
    if len(parts) < 2 or not all(parts):
        raise UsageError(
            f"{url} does not name a primary and a fallback",
            hint="write resilient:sqlite:///runs.db|file:copy, in quotes on a command line",
        )
    from surehold.storage.replicated import ResilientStorage

    return ResilientStorage(*map(_open_if_there, parts))


def _open_if_there(address: str) -> Storage | Callable[[], Storage]:
    """The storage or, if it is away just now, what opens it."""
    try:
        return _open(address)
    except (StorageError, CorruptError):
        return lambda: _open(address)
    except UsageError as error:
        if not os.path.isdir(error.facts.get("path", "")):
            raise
        logger.warning("%s: its copy takes its place", error.message)
        return lambda: _open_if_no_directory(address)


def _open_if_no_directory(address: str) -> Storage:
    try:
        return _open(address)
    except UsageError as error:
        raise StorageUnavailableError(error.message, hint="move the directory away") from error


_COMPRESS: dict[str, bool | str] = {"false": False, "true": True, "gzip": "gzip", "zstd": "zstd"}
_SCHEMES: dict[str, Callable[[StorageURL], Storage]] = {
    "az": _open_objects,
    "cosmos": _open_cosmos,
    "file": _open_file,
    "gs": _open_objects,
    "memory": _open_memory,
    "postgresql": _open_postgres,
    "redis": _open_redis,
    "resilient": _open_resilient,
    "s3": _open_objects,
    "sqlite": _open_sqlite,
}


def _open_redundant(url: StorageURL, scheme: str) -> Storage:
    """The storage and a second copy of it beside it, as one."""
    told = url.options["redundancy"]
    rest = {key: value for key, value in url.options.items() if key != "redundancy"}
    plain = StorageURL(url.scheme, url.host, url.path, rest, url.full)
    if told == "0":
        return _SCHEMES[scheme](plain)
    if told != "1" or scheme not in _BESIDE:
        raise UsageError(
            f"redundancy={told} is not known to {url.scheme}: storages",
            hint=f"it is 0 or 1, with {', '.join(sorted(_BESIDE))}",
            option="redundancy",
        )
    options, path = {**rest, "compress": "zstd"}, url.path
    match scheme:
        case "sqlite":
            copy = StorageURL("file", None, f"{path.removeprefix('/')}.copy", options, url.full)
        case "file":
            copy = StorageURL("file", url.host, f"{path.rstrip('/')}/.copy", options, url.full)
        case "s3" | "gs" | "az" | "cosmos":
            copy = StorageURL(url.scheme, url.host, f"{path.rstrip('/')}/copy", options, url.full)
        case _:
            option = "schema" if scheme == "postgresql" else "prefix"
            options[option] = f"{rest.get(option, 'surehold')}_copy"
            copy = StorageURL(url.scheme, url.host, path, options, url.full)
    from surehold.storage.replicated import ResilientStorage
    from surehold.storage.retries import Retry

    storage = ResilientStorage(
        _SCHEMES[scheme](plain),
        _SCHEMES[_BESIDE[scheme]](copy),
        # A disk of this machine is not watched by a thread for each call.
        retry=Retry(deadline=None) if _BESIDE[scheme] == "file" else None,
    )
    storage.redundancy = 1
    return storage


_BESIDE = {
    "sqlite": "file",
    **{name: name for name in ("file", "postgresql", "redis", "s3", "gs", "az", "cosmos")},
}
"""The schemes that can keep a second copy, and that of the copy."""


def _open_url(url: StorageURL) -> Storage:
    scheme = _ALIASES.get(url.scheme, url.scheme)
    if "redundancy" in url.options and scheme in _SCHEMES:
        return _open_redundant(url, scheme)
    if scheme in _SCHEMES:
        return _SCHEMES[scheme](url)
    for plugin in _plugins():
        if plugin.name == url.scheme:
            return _open_plugin(plugin, url)
    raise _unknown_scheme(url)


def _plugins() -> Iterable[EntryPoint]:
    """Storages of installed packages; looking for them takes longer than opening one."""
    from importlib.metadata import entry_points

    return entry_points(group=_GROUP)


def _open_plugin(plugin: EntryPoint, url: StorageURL) -> Storage:
    try:
        factory = plugin.load()
    except Exception as error:
        package = plugin.dist.name if plugin.dist else plugin.value
        raise UsageError(
            f"the storage {plugin.name}: of the package {package} cannot be loaded: {error!r}",
            hint=f"repair or uninstall {package}; other storages are not touched by it",
            scheme=plugin.name,
        ) from error
    return _checked(factory(url), f"the storage {plugin.name}:")


def _checked(storage: Any, who: str) -> Storage:
    if _is_store(storage):
        return _of_store(storage)
    if not isinstance(storage, Storage):
        raise UsageError(f"{who} gave a {type(storage).__name__}, which is not a Storage")
    return storage


def _unknown_scheme(url: StorageURL) -> NotFoundError:
    known = sorted({*_SCHEMES, *(plugin.name for plugin in _plugins())})
    scheme = _SPELLINGS.get(url.scheme, url.scheme)
    return NotFoundError(
        f"no storage has the scheme {url.scheme!r}",
        hint=f"{nearest(scheme, known)}there are: {', '.join(known)}",
        scheme=url.scheme,
    )


def _unknown_name(name: str) -> NotFoundError | UsageError:
    names = checkpoint_stores()
    if any(mark in name for mark in "/\\.~"):
        return _is_a_path(name)
    hint = f"{nearest(name, names)}registered: {', '.join(names)}; or {_examples()}"
    return NotFoundError(
        f"no storage is registered as {mask_url(name)!r}", hint=hint, storage=mask_url(name)
    )


def _is_a_path(path: str) -> UsageError:
    return UsageError(
        f"{mask_url(path)!r} is a path; a storage is named by a URL", hint=url_for_path(path)
    )


def _examples() -> str:
    return "a URL such as sqlite:///runs.db, file:runs or memory://"
