"""Addresses of storages: URLs taken apart, and shown without their passwords."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path, PurePath
from types import MappingProxyType
from urllib.parse import parse_qsl, quote, unquote

from surehold.errors import UsageError

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
# Compiled at first use: most addresses are never shown.
_CREDENTIALS = r"(?s)(^(?:[^:/?#]*://)?[^:/?#@]*:)(?!//).*@"
_SECRETS = r"(?i)((?:^|[?&;])[^=&;]*(?:pass|pwd|secret|token|key|credential|sig)[^=&;]*=)[^&;#]*"
EXPORTED = ".surehold"
"""The end of an exported run's name, which is a storage of one run."""
_DATABASES = (".db", ".db3", ".sqlite", ".sqlite3", EXPORTED)


def mask_url(url: str) -> str:
    """*url* with every password replaced, fit to be shown.

    In doubt it hides more: a password may hold any character, an ``@`` too.

    >>> mask_url("postgresql://me:p@ss/word@host/db?sslpassword=x&timeout=3")
    'postgresql://me:***@host/db?sslpassword=***&timeout=3'
    """
    return re.sub(_SECRETS, r"\1***", re.sub(_CREDENTIALS, r"\1***@", url))


class StorageURL:
    """The URL of a storage, taken apart. As text it is masked.

    >>> url = StorageURL.parse("file:///srv/my%20runs?compress=gzip")
    >>> url.scheme, url.host, url.path, dict(url.options)
    ('file', '', '/srv/my runs', {'compress': 'gzip'})
    """

    def __init__(
        self, scheme: str, host: str | None, path: str, options: Mapping[str, str], full: str
    ) -> None:
        self.scheme = scheme
        self.host = host
        """The part between ``//`` and the path, as it was given; None without ``//``.

        User and password are part of it.
        """
        self.path = path
        """Percent-decoded, its leading slash included."""
        self.options = MappingProxyType(dict(options))
        self.full = full
        """The URL as it was given, passwords included: to connect with, not to be shown."""

    @classmethod
    def parse(cls, text: str) -> StorageURL:
        """Parse a URL; a `UsageError` names the part that is wrong."""
        found = _URL.fullmatch(text)
        if found is None:
            raise UsageError(f"{mask_url(text)!r} is not a URL", hint=url_for_path(text))
        rest, _, query = found["rest"].partition("?")
        host = None
        if rest.startswith("//"):
            host, slash, path = rest[2:].partition("/")
            rest = slash + path
        if "#" in rest or "#" in query:
            raise UsageError(
                f"{mask_url(text)!r} holds a '#', which ends a URL", hint="write it as %23"
            )
        return cls(found["scheme"].lower(), host, unquote(rest), _options(query, text), text)

    def check_options(self, *known: str) -> None:
        """Raise a `UsageError` if the URL has an option that is not one of *known*."""
        for option in self.options:
            if option not in known:
                have = f"they have: {', '.join(known)}" if known else "they have none"
                raise UsageError(
                    f"{self.scheme}: storages have no option {option!r}",
                    hint=nearest(option, known) + have,
                    option=option,
                )

    def __repr__(self) -> str:
        return f"StorageURL({mask_url(self.full)!r})"

    def __str__(self) -> str:
        return mask_url(self.full)


def _options(query: str, text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise UsageError(
            f"the options of {mask_url(text)!r} are not of the form key=value&key=value"
        ) from None
    options = dict(pairs)
    if len(options) < len(pairs):
        raise UsageError(f"an option of {mask_url(text)!r} is given twice")
    return options


def has_scheme(text: str) -> bool:
    """True if *text* begins like a URL. A drive letter is not a scheme."""
    return _URL.fullmatch(text) is not None


def place_of(address: str) -> Path | None:
    """The file or directory of an address; None if it has none."""
    if not has_scheme(address):
        return None
    url = StorageURL.parse(address)
    if url.scheme == "sqlite":
        return Path(url.path.removeprefix("/"))
    if url.scheme == "file":
        return Path(f"{url.host}{url.path}" if url.host in (".", "..") else url.path)
    return None


def beside(address: str, base: Path | None) -> str:
    """*address*, with relative paths resolved against *base*.

    >>> beside("sqlite:///runs.db?compress=zstd", Path("/srv"))
    'sqlite:////srv/runs.db?compress=zstd'
    >>> beside("resilient:sqlite:///runs.db|file:copy", Path("/srv"))
    'resilient:sqlite:////srv/runs.db|file:/srv/copy'
    """
    if base is not None and address.startswith("resilient:"):
        parts = address.removeprefix("resilient:").split("|")
        return "resilient:" + "|".join(beside(part, base) for part in parts)
    path = place_of(address)
    if base is None or path is None or path.is_absolute():
        return address
    url = StorageURL.parse(address)
    options = f"?{address.partition('?')[2]}" if url.options else ""
    place = quote(str(base / path))
    return f"{url.scheme}:{'///' if url.scheme == 'sqlite' else ''}{place}{options}"


def url_for_path(path: str) -> str:
    """A hint that spells the URL of a file or a directory.

    >>> url_for_path("runs.db"), url_for_path("/srv/runs")
    ('write sqlite:///runs.db', 'write file:///srv/runs')
    """
    shown = quote(mask_url(path).replace("\\", "/"), safe="/:.~*@")
    if PurePath(path).suffix.lower() in _DATABASES:
        return f"write sqlite:///{shown}"
    return f"write file://{shown}" if shown.startswith("/") else f"write file:{shown}"


def nearest(word: str, known: Iterable[str]) -> str:
    """The start of a hint that names the nearest of *known*; "" if nothing is near.

    >>> nearest("sqlit", ["file", "sqlite"])
    'did you mean sqlite? '
    >>> nearest("version", ["verify", "runs"])
    ''
    """
    near = get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"did you mean {near[0]}? " if near else ""
