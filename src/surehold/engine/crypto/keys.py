"""Sources of encryption keys, and the ring that opens runs with them.

A key is 32 bytes, given raw, as hex or as base64; any other text is a passphrase, from which
scrypt makes a key. It can stand in a file or in the environment, or stay in a key service that
wraps and unwraps for us. What a run is encrypted with is a data key of its own, which the journal
keeps wrapped, so changing the key touches no body.

Nothing here shows a key in a repr, an error or a log.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from surehold.core.records import Kdf, KeyNote, frame
from surehold.errors import StorageUnavailableError, UsageError, WrongKeyError

KEY_VARIABLE = "SUREHOLD_ENCRYPTION_KEY"
FILE_VARIABLE = "SUREHOLD_ENCRYPTION_KEY_FILE"
_MAKES = "openssl rand -hex 32 makes a key"

_SHORTEST_PASSPHRASE = 12
_LARGEST_FILE = 4096
_HEX = r"[0-9a-fA-F]{64}"
_BASE64 = r"[A-Za-z0-9+/]{43}=?"
# 32 MiB and about a third of a second.
_SCRYPT = (1 << 15, 8, 3)
_SALT_BYTES = 16
_MOST_OPEN = 1024


@runtime_checkable
class KeyService(Protocol):
    """A key that never leaves the service that holds it (a KMS, an HSM).

    `id` names the key; another key must have another id. What `wrap` gives, `unwrap` turns back.
    An `OSError` (a timeout, a lost connection) says that trying again may help.
    """

    @property
    def id(self) -> str: ...

    def wrap(self, data: bytes) -> bytes: ...

    def unwrap(self, data: bytes) -> bytes: ...


Key: TypeAlias = bytes | str | Path | KeyService | Callable[[], bytes | str]
"""32 raw bytes; hex, base64 or a passphrase; a file of one of these; a service; or a function
that fetches bytes or text."""


def load_keys(
    key: Key | None = None, *, environ: Mapping[str, str], old_keys: Sequence[Key] = ()
) -> Keyring | None:
    """The ring of *key*, else of the key that *environ* names; None without either.

    Blank text counts as none. *old_keys* open what was saved before the key was changed; they
    encrypt nothing.

    >>> load_keys(environ={}) is None
    True
    >>> load_keys(environ={"SUREHOLD_ENCRYPTION_KEY": "ab" * 32})
    <Keyring of 1>
    """
    chosen = None if _is_blank(key) else key
    if chosen is None:
        chosen = _from_environment(environ)
    olds = [old for old in old_keys if not _is_blank(old)]
    if chosen is None:
        if olds:
            raise UsageError(
                "old_keys= is given without a key", hint=f"give the new one, or {KEY_VARIABLE}"
            )
        return None
    frame.need_crypto()
    return Keyring(chosen, olds)


def _is_blank(key: Key | None) -> bool:
    return isinstance(key, str) and not key.strip()


def _from_environment(environ: Mapping[str, str]) -> Key | None:
    text, path = environ.get(KEY_VARIABLE, "").strip(), environ.get(FILE_VARIABLE, "").strip()
    if text and path:
        raise UsageError(f"both {KEY_VARIABLE} and {FILE_VARIABLE} are set", hint="unset one")
    if path:
        return Path(path)
    return text or None


class Keyring:
    """The key that encrypts, and older ones that still open; thread-safe."""

    def __init__(self, key: Key, old_keys: Sequence[Key] = ()) -> None:
        self._primary = _lock(key)
        self._locks = (self._primary, *(_lock(old) for old in old_keys))
        self._opened: dict[tuple[str, KeyNote], bytes] = {}

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._locks)}>"

    def new_run_key(self, run_id: str) -> tuple[bytes, dict[str, Any]]:
        """A new data key for *run_id*, and the body of the key note that keeps it."""
        data_key = secrets.token_bytes(frame.KEY_BYTES)
        note = self._primary.wrap(data_key, run_id)
        self._remember(run_id, frame.read_key_note(note, run_id=run_id), data_key)
        return data_key, note

    def open(self, note_body: Mapping[str, Any], run_id: str) -> bytes:
        """The data key that *note_body* keeps for *run_id*.

        A `WrongKeyError` says which key it takes and which are at hand, by their ids; a
        `CorruptError`, that the note was altered or is another run's.
        """
        note = frame.read_key_note(note_body, run_id=run_id)
        known = self._opened.get((run_id, note))
        if known is not None:
            return known
        at_hand = []
        for lock in self._locks:
            if lock.fits(note):
                data_key = lock.unwrap(note, run_id)
                self._remember(run_id, note, data_key)
                return data_key
            at_hand.append(lock.id_for(note))
        raise frame.wrong_key(note.key, at_hand, run_id=run_id)

    def needs_rotation(self, note_body: Mapping[str, Any]) -> bool:
        """Return True if a key other than the current one wrapped *note_body*."""
        return not self._primary.fits(frame.read_key_note(note_body, run_id=""))

    def rewrap(self, note_body: Mapping[str, Any], run_id: str) -> dict[str, Any]:
        """A note that keeps the same data key under the key that encrypts now."""
        return self._primary.wrap(self.open(note_body, run_id), run_id)

    def _remember(self, run_id: str, note: KeyNote, data_key: bytes) -> None:
        if len(self._opened) >= _MOST_OPEN:
            self._opened.clear()
        self._opened[run_id, note] = data_key


class _Lock(Protocol):
    def id_for(self, note: KeyNote) -> str:
        """The id of the key with which it would open *note*."""

    def fits(self, note: KeyNote) -> bool: ...

    def wrap(self, data_key: bytes, run_id: str) -> dict[str, Any]: ...

    def unwrap(self, note: KeyNote, run_id: str) -> bytes: ...


class _RawKey:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._id = frame.key_id(key)

    def id_for(self, note: KeyNote) -> str:
        return self._id

    def fits(self, note: KeyNote) -> bool:
        return note.alg == frame.WRAP and note.kdf is None and note.key == self._id

    def wrap(self, data_key: bytes, run_id: str) -> dict[str, Any]:
        return _wrap(data_key, self._key, run_id)

    def unwrap(self, note: KeyNote, run_id: str) -> bytes:
        return frame.unwrap_key(msgspec.to_builtins(note), [self._key], run_id=run_id)


class _Passphrase:
    """Makes its key anew for each salt it meets, and stays with a salt that is in use."""

    def __init__(self, text: str) -> None:
        self._text = unicodedata.normalize("NFKC", text).encode()
        n, r, p = _SCRYPT
        salt = base64.b64encode(secrets.token_bytes(_SALT_BYTES)).decode()
        self._kdf = Kdf(n=n, r=r, p=p, salt=salt)
        self._made: dict[Kdf, bytes] = {}
        self._making = threading.Lock()

    def id_for(self, note: KeyNote) -> str:
        return "a passphrase" if note.kdf is None else frame.key_id(self._key(note.kdf))

    def fits(self, note: KeyNote) -> bool:
        return note.alg == frame.WRAP and note.kdf is not None and self.id_for(note) == note.key

    def wrap(self, data_key: bytes, run_id: str) -> dict[str, Any]:
        kdf = self._kdf
        return _wrap(data_key, self._key(kdf), run_id) | {"kdf": msgspec.to_builtins(kdf)}

    def unwrap(self, note: KeyNote, run_id: str) -> bytes:
        kdf = note.kdf or self._kdf
        data_key = frame.unwrap_key(msgspec.to_builtins(note), [self._key(kdf)], run_id=run_id)
        if (kdf.n, kdf.r, kdf.p) == _SCRYPT:
            # Only who knows the passphrase can have made this note, so its salt is as good as
            # ours; with fewer salts in a storage, opening all its runs takes fewer derivations.
            self._kdf = kdf
        return data_key

    def _key(self, kdf: Kdf) -> bytes:
        with self._making:
            if kdf not in self._made:
                self._made[kdf] = self._derive(kdf)
            return self._made[kdf]

    def _derive(self, kdf: Kdf) -> bytes:
        salt = base64.b64decode(kdf.salt)
        room = 2 * 128 * kdf.n * kdf.r
        return hashlib.scrypt(
            self._text, salt=salt, n=kdf.n, r=kdf.r, p=kdf.p, maxmem=room, dklen=frame.KEY_BYTES
        )


class _Served:
    def __init__(self, service: KeyService) -> None:
        self._service = service
        self._id = str(service.id).strip()
        if not self._id:
            raise UsageError("a key service has no id", hint="give it one: text that names its key")

    def id_for(self, note: KeyNote) -> str:
        return self._id

    def fits(self, note: KeyNote) -> bool:
        return note.alg == frame.SERVICE and note.key == self._id

    def wrap(self, data_key: bytes, run_id: str) -> dict[str, Any]:
        with self._asked(run_id):
            wrapped = base64.b64encode(self._service.wrap(data_key)).decode()
        return {
            "v": 1,
            "alg": frame.SERVICE,
            "key": self._id,
            "wrapped": wrapped,
            "check": frame.data_key_check(data_key, run_id),
        }

    def unwrap(self, note: KeyNote, run_id: str) -> bytes:
        try:
            wrapped = base64.b64decode(note.wrapped, validate=True)
        except ValueError:
            raise frame.bad_key_note(run_id, "was altered") from None
        with self._asked(run_id):
            data_key = bytes(self._service.unwrap(wrapped))
        if len(data_key) != frame.KEY_BYTES or not hmac.compare_digest(
            frame.data_key_check(data_key, run_id), note.check
        ):
            raise frame.bad_key_note(run_id, "was altered, or is another run's")
        return data_key

    @contextmanager
    def _asked(self, run_id: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageUnavailableError(
                f"the key service of {self._id} cannot be reached", run_id=run_id
            ) from error
        except Exception as error:
            raise WrongKeyError(
                f"the key service of {self._id} refused the data key of run {run_id!r}",
                hint="its own error is the cause of this one",
                run_id=run_id,
                wanted=self._id,
                at_hand=[self._id],
            ) from error


def _wrap(data_key: bytes, key: bytes, run_id: str) -> dict[str, Any]:
    nonce = secrets.token_bytes(frame.NONCE_BYTES)
    return frame.wrap_key(data_key, key, run_id=run_id, nonce=nonce)


def _lock(key: object) -> _Lock:
    if isinstance(key, bytes):
        if len(key) != frame.KEY_BYTES:
            raise UsageError("a key given as bytes is 32 bytes", hint="give a passphrase as text")
        return _RawKey(key)
    if isinstance(key, str):
        return _from_text(key)
    if isinstance(key, Path):
        return _from_file(key)
    if isinstance(key, KeyService):
        return _Served(key)
    fetched = key() if callable(key) else None
    if isinstance(fetched, bytes | str):
        return _lock(fetched)
    raise UsageError(
        f"a {type(key).__name__} is not a key, and does not give one",
        hint="32 bytes, text, a Path, a function that returns bytes or text, or an object with"
        " id, wrap and unwrap",
    )


def _from_text(text: str) -> _Lock:
    text = text.strip()
    if re.fullmatch(_HEX, text):
        return _RawKey(bytes.fromhex(text))
    standard = text.replace("-", "+").replace("_", "/")
    if re.fullmatch(_BASE64, standard):
        return _RawKey(base64.b64decode(standard[:43] + "="))
    if len(text) < _SHORTEST_PASSPHRASE:
        raise UsageError(
            f"a passphrase has {_SHORTEST_PASSPHRASE} characters or more",
            hint=_MAKES,
        )
    if "\0" not in text and os.path.isfile(text):
        raise UsageError(
            "the key given is the name of a file", hint=f"give a pathlib.Path, or {FILE_VARIABLE}"
        )
    return _Passphrase(text)


def _from_file(path: Path) -> _Lock:
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"the key file {path} cannot be read: {why}",
            hint=f"give the path of a file that this user may read, or unset {FILE_VARIABLE}",
        ) from error
    if not data.strip():
        raise UsageError(f"the key file {path} is blank", hint=_MAKES)
    if len(data) > _LARGEST_FILE:
        raise UsageError(f"the key file {path} holds more than a key", hint=_MAKES)
    text = _as_text(data)
    if text is not None:
        return _from_text(text)
    if len(data) == frame.KEY_BYTES:
        return _RawKey(data)
    raise UsageError(
        f"the key file {path} holds neither 32 bytes nor a line of text",
        hint=_MAKES,
    )


def _as_text(data: bytes) -> str | None:
    """Decode *data* as text; None if it is not text.

    32 letters are a passphrase that needs stretching, not a key; random bytes look like text with
    odds of one in 10**11.
    """
    try:
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None
