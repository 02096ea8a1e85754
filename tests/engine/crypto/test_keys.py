from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surehold.core.records import frame
from surehold.engine.crypto import keys
from surehold.engine.crypto.keys import Key, Keyring, KeyService, load_keys
from surehold.errors import (
    CorruptError,
    MissingExtraError,
    StorageUnavailableError,
    SureholdError,
    UsageError,
    WrongKeyError,
)

RAW = bytes.fromhex("3b" * 31 + "7f")
OTHER = b"o" * 32
PHRASE = "correct horse battery"
ID = frame.key_id(RAW)


class Kms:
    """A key service of the plainest kind, its key kept to itself."""

    def __init__(self, name: str = "alias/prod", pad: bytes = RAW) -> None:
        self.id = name
        self._pad = pad
        self.calls: list[str] = []
        self.fails: Exception | None = None

    def _xor(self, data: bytes) -> bytes:
        if self.fails is not None:
            raise self.fails
        return bytes(a ^ b for a, b in zip(data, self._pad, strict=True))

    def wrap(self, data: bytes) -> bytes:
        self.calls.append("wrap")
        return self._xor(data)

    def unwrap(self, data: bytes) -> bytes:
        self.calls.append("unwrap")
        return self._xor(data)


def ring(key: Key | None = RAW, *old: Key, **environ: str) -> Keyring:
    made = load_keys(key, environ=environ, old_keys=old)
    assert made is not None
    return made


def id_of(keys: Keyring) -> str:
    """The id of the key that encrypts."""
    return frame.read_key_note(keys.new_run_key("r")[1], run_id="r").key


@pytest.fixture(autouse=True)
def quick_stretching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretch passphrases a little; the notes say how much."""
    monkeypatch.setattr(keys, "_SCRYPT", (1 << 13, 8, 1))


def stored(note: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a journal."""
    read: dict[str, Any] = json.loads(json.dumps(note))
    return read


# where keys come from


def spellings(folder: Path) -> dict[str, Key]:
    (folder / "raw").write_bytes(RAW)
    (folder / "hex").write_text(RAW.hex() + "\n")
    (folder / "base64").write_text(f"\ufeff {base64.b64encode(RAW).decode()}\r\n")
    url = base64.urlsafe_b64encode(RAW).decode()
    return {
        "raw bytes": RAW,
        "hex": RAW.hex(),
        "hex in capitals": RAW.hex().upper(),
        "base64": base64.b64encode(RAW).decode(),
        "base64 for URLs": url,
        "base64 without padding": f" {url.rstrip('=')}\n",
        "a file of bytes": folder / "raw",
        "a file of hex": folder / "hex",
        "a file of base64": folder / "base64",
        "a function that fetches bytes": lambda: RAW,
        "a function that fetches text": RAW.hex,
    }


def test_a_key_is_the_same_however_it_is_spelt(tmp_path: Path) -> None:
    for name, key in spellings(tmp_path).items():
        assert id_of(ring(key)) == ID, name


def test_the_environment_gives_a_key_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(RAW.hex())
    assert id_of(ring(None, SUREHOLD_ENCRYPTION_KEY=RAW.hex())) == ID
    assert id_of(ring(None, SUREHOLD_ENCRYPTION_KEY_FILE=str(file))) == ID
    assert id_of(ring("", SUREHOLD_ENCRYPTION_KEY=RAW.hex())) == ID


def test_the_argument_wins_over_the_environment() -> None:
    assert id_of(ring(OTHER, SUREHOLD_ENCRYPTION_KEY=RAW.hex())) == frame.key_id(OTHER)


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_blank_counts_as_unset(blank: str) -> None:
    environ = {keys.KEY_VARIABLE: blank, keys.FILE_VARIABLE: blank}
    assert load_keys(blank, environ=environ, old_keys=[blank]) is None
    assert load_keys(environ={}) is None


def test_both_variables_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="both SUREHOLD_ENCRYPTION_KEY and"):
        ring(None, SUREHOLD_ENCRYPTION_KEY=RAW.hex(), SUREHOLD_ENCRYPTION_KEY_FILE="x")


def test_old_keys_alone_do_not_encrypt() -> None:
    with pytest.raises(UsageError, match="old_keys= is given without a key"):
        load_keys(environ={}, old_keys=[RAW])


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_bytes_that_are_no_key_are_refused(size: int) -> None:
    with pytest.raises(UsageError, match="32 bytes"):
        ring(bytes(size))


@pytest.mark.parametrize("key", [3, ["x"], {"a": 1}, lambda: None, lambda: 5])
def test_what_is_no_key_is_refused_with_what_is(key: Any) -> None:
    with pytest.raises(UsageError, match="wrap and unwrap"):
        ring(key)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "blank"),
        (b" \n", "blank"),
        (b"\xff" * 31, "neither"),
        (b"a" * 4097, "more than a key"),
    ],
)
def test_a_file_without_a_key_is_refused_by_name(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        ring(file)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, Path("~nobody-here/key")):
        with pytest.raises(UsageError, match="cannot be read") as caught:
            ring(None, SUREHOLD_ENCRYPTION_KEY_FILE=str(path))
        assert str(path) in str(caught.value)
        assert "unset SUREHOLD_ENCRYPTION_KEY_FILE" in caught.value.hint


def test_a_path_given_as_text_is_not_taken_for_a_passphrase(tmp_path: Path) -> None:
    file = tmp_path / "a-file-with-a-key"
    file.write_text(RAW.hex())
    with pytest.raises(UsageError, match=r"pathlib\.Path"):
        ring(str(file))


def test_text_of_32_bytes_in_a_file_is_stretched_like_any_passphrase(tmp_path: Path) -> None:
    words, file = "thirty-two letters, not a key ok", tmp_path / "key"
    assert len(words) == 32
    _, note = ring(words).new_run_key("r")
    for ending in ("", "\n"):
        file.write_text(words + ending)
        assert "kdf" in ring(file).new_run_key("s")[1]
        assert ring(file).open(note, "r")


def test_without_the_extra_no_ring_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'surehold\[crypto\]'"):
        load_keys(RAW, environ={})


# the ring


def test_every_run_has_a_data_key_of_its_own() -> None:
    made = ring()
    first, second = made.new_run_key("r")[0], made.new_run_key("r")[0]
    assert first != second and len(first) == len(second) == 32


@pytest.mark.parametrize("kind", ["raw", "passphrase", "service"])
def test_another_process_with_the_same_key_opens_the_run(kind: str) -> None:
    source: dict[str, Callable[[], Key]] = {
        "raw": lambda: RAW,
        "passphrase": lambda: PHRASE,
        "service": Kms,
    }
    data_key, note = ring(source[kind]()).new_run_key("r")
    assert ring(source[kind]()).open(stored(note), "r") == data_key


@settings(max_examples=30)
@given(st.binary(min_size=32, max_size=32), st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_key_opens_any_run_it_made(key: bytes, run_id: str) -> None:
    data_key, note = ring(key).new_run_key(run_id)
    assert ring(key).open(stored(note), run_id) == data_key


@pytest.mark.parametrize("key", [RAW, PHRASE, Kms()])
def test_a_note_moved_to_another_run_is_refused(key: Key) -> None:
    made = ring(key)
    _, note = made.new_run_key("r")
    with pytest.raises(CorruptError, match="another run's"):
        made.open(stored(note), "s")


def test_a_wrong_key_names_the_id_wanted_and_those_at_hand() -> None:
    _, note = ring().new_run_key("r")
    with pytest.raises(WrongKeyError) as caught:
        ring(OTHER, Kms()).open(stored(note), "r")
    assert (caught.value.wanted, caught.value.run_id) == (ID, "r")
    assert caught.value.at_hand == [frame.key_id(OTHER), "alias/prod"]


def test_a_wrong_passphrase_says_so() -> None:
    _, note = ring(PHRASE).new_run_key("r")
    with pytest.raises(WrongKeyError, match=note["key"]):
        ring(PHRASE + "!").open(stored(note), "r")


def test_a_passphrase_for_a_run_that_has_a_key_says_so() -> None:
    _, note = ring().new_run_key("r")
    with pytest.raises(WrongKeyError, match="at hand: a passphrase"):
        ring(PHRASE).open(stored(note), "r")


def test_nothing_opens_a_note_that_was_altered() -> None:
    made = ring()
    _, note = made.new_run_key("r")
    made.open(note, "r")
    for change in ({"wrapped": note["wrapped"][::-1]}, {"check": "0" * 32}, {"v": 9}):
        with pytest.raises(CorruptError):
            made.open(stored(note) | change, "r")


# rotation


@pytest.mark.parametrize("old", [RAW, PHRASE, Kms("alias/old")])
@pytest.mark.parametrize("new", [OTHER, "another passphrase", Kms("alias/new", OTHER)])
def test_a_run_is_rotated_without_changing_its_data_key(old: Key, new: Key) -> None:
    data_key, note = ring(old).new_run_key("r")
    both = ring(new, old)
    assert both.needs_rotation(stored(note))
    assert both.open(stored(note), "r") == data_key, "the old key opens until it is done"
    fresh = both.rewrap(stored(note), "r")
    assert not both.needs_rotation(stored(fresh)), "so an interrupted rotation goes on where it was"
    assert ring(new).open(stored(fresh), "r") == data_key
    with pytest.raises(WrongKeyError):
        ring(old).open(stored(fresh), "r")


def test_a_ring_of_the_same_key_needs_no_rotation() -> None:
    for key in (RAW, PHRASE, Kms()):
        _, note = ring(key).new_run_key("r")
        assert not ring(key).needs_rotation(stored(note))


def test_two_services_are_told_apart_by_their_ids() -> None:
    _, note = ring(Kms("a")).new_run_key("r")
    assert ring(Kms("b")).needs_rotation(stored(note))
    with pytest.raises(WrongKeyError, match="key a; at hand: b"):
        ring(Kms("b")).open(stored(note), "r")


# passphrases


@pytest.mark.parametrize("phrase", ["short", "eleven char", "   padded    "])
def test_a_short_passphrase_is_refused(phrase: str) -> None:
    with pytest.raises(UsageError, match="12 characters"):
        ring(phrase)


def test_a_passphrase_is_salted_and_its_note_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    notes = [ring(PHRASE).new_run_key("r")[1] for _ in range(2)]
    assert notes[0]["kdf"]["salt"] != notes[1]["kdf"]["salt"]
    kdf = notes[0]["kdf"]
    made = hashlib.scrypt(
        PHRASE.encode(),
        salt=base64.b64decode(kdf["salt"]),
        n=kdf["n"],
        r=kdf["r"],
        p=kdf["p"],
        maxmem=1 << 27,
        dklen=32,
    )
    assert frame.key_id(made) == notes[0]["key"]


def test_a_passphrase_is_the_same_however_its_letters_are_composed() -> None:
    data_key, note = ring("cafe\u0301 au lait, s'il vous plait").new_run_key("r")
    assert ring("caf\u00e9 au lait, s'il vous plait").open(stored(note), "r") == data_key


def test_a_ring_that_opened_a_run_stays_with_its_salt() -> None:
    _, note = ring(PHRASE).new_run_key("r")
    later = ring(PHRASE)
    later.open(stored(note), "r")
    assert later.new_run_key("s")[1]["kdf"] == note["kdf"]
    assert id_of(later) == note["key"]


def test_a_passphrase_is_stretched_once_for_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    stretched: list[int] = []
    scrypt = hashlib.scrypt

    def count(*args: Any, **options: Any) -> bytes:
        stretched.append(1)
        return scrypt(*args, **options)

    monkeypatch.setattr(hashlib, "scrypt", count)
    made = ring(PHRASE)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(made.new_run_key, map(str, range(100))))
    assert len(stretched) == 1


def test_a_salt_is_not_kept_on_with_weaker_stretching(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(keys, "_SCRYPT", (1 << 12, 8, 1))
        data_key, note = ring(PHRASE).new_run_key("r")
    later = ring(PHRASE)
    assert later.open(stored(note), "r") == data_key
    assert later.new_run_key("s")[1]["kdf"]["n"] > note["kdf"]["n"]


# key services


def test_an_object_with_id_wrap_and_unwrap_is_a_key_service() -> None:
    assert isinstance(Kms(), KeyService)
    with pytest.raises(UsageError, match="no id"):
        ring(Kms(" "))


def test_a_service_is_asked_once_for_each_run() -> None:
    kms = Kms()
    made = ring(kms)
    _, note = made.new_run_key("r")
    for _ in range(3):
        made.open(stored(note), "r")
    assert kms.calls == ["wrap"], "what it has just wrapped need not be unwrapped"
    later = ring(kms)
    for _ in range(3):
        later.open(stored(note), "r")
    assert kms.calls == ["wrap", "unwrap"]


def test_a_service_that_cannot_be_reached_can_be_tried_again() -> None:
    kms = Kms()
    _, note = ring(kms).new_run_key("r")
    kms.fails = TimeoutError("no answer")
    later = ring(kms)
    for call in (lambda: later.open(stored(note), "r"), lambda: later.new_run_key("s")):
        with pytest.raises(StorageUnavailableError, match="alias/prod") as caught:
            call()
        assert caught.value.retryable and caught.value.__cause__ is kms.fails
    kms.fails = None
    assert later.open(stored(note), "r")


def test_a_service_that_refuses_is_a_wrong_key() -> None:
    kms = Kms()
    _, note = ring(kms).new_run_key("r")
    kms.fails = PermissionDenied("not yours")
    with pytest.raises(WrongKeyError, match="refused") as caught:
        ring(kms).open(stored(note), "r")
    assert caught.value.__cause__ is kms.fails


class PermissionDenied(Exception):
    pass


@pytest.mark.parametrize("answer", [None, "text"])
def test_a_service_that_gives_no_bytes_is_refused(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kms = Kms()
    _, note = ring(kms).new_run_key("r")
    for method in ("wrap", "unwrap"):
        monkeypatch.setattr(kms, method, lambda data: answer)
    for call in (lambda: ring(kms).open(stored(note), "r"), lambda: ring(kms).new_run_key("s")):
        with pytest.raises(WrongKeyError):
            call()


@pytest.mark.parametrize("wrapped", ["", "not base64", base64.b64encode(bytes(32)).decode()])
def test_a_service_note_that_was_altered_is_refused(wrapped: str) -> None:
    kms = Kms()
    _, note = ring(kms).new_run_key("r")
    with pytest.raises((CorruptError, WrongKeyError)):
        ring(kms).open(stored(note) | {"wrapped": wrapped}, "r")


def test_a_service_and_a_key_never_open_each_others_notes() -> None:
    kms = Kms(ID)
    _, served = ring(kms).new_run_key("r")
    _, wrapped = ring(RAW).new_run_key("r")
    for key, note in ((kms, wrapped), (RAW, served)):
        with pytest.raises(WrongKeyError):
            ring(key).open(stored(note), "r")
    assert kms.calls == ["wrap"]


def test_a_service_that_unwraps_to_another_key_is_caught() -> None:
    _, note = ring(Kms("same", RAW)).new_run_key("r")
    with pytest.raises(CorruptError, match="altered"):
        ring(Kms("same", OTHER)).open(stored(note), "r")


def test_opened_keys_are_forgotten_before_they_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_MOST_OPEN", 3)
    made = ring()
    opened = {run: made.new_run_key(run) for run in "abcdefgh"}
    assert len(made._opened) <= 3
    assert all(made.open(stored(note), run) == key for run, (key, note) in opened.items())


# what is shown


def test_no_key_shows_in_a_repr_an_error_or_a_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "key"
    file.write_bytes(RAW + b"tail")
    made, phrase = ring(RAW, OTHER, PHRASE), ring(PHRASE)
    data_key, note = made.new_run_key("r")
    phrase.new_run_key("r")
    shown = [
        repr(made), str(made), repr(phrase), json.dumps(note), note["key"], id_of(made),
        *(repr(lock) for lock in made._locks),
        *(failure(call) for call in (
            lambda: ring(PHRASE[:11]),
            lambda: ring(RAW[:31]),
            lambda: ring(file),
            lambda: ring(OTHER).open(note, "r"),
            lambda: phrase.open(note, "r"),
            lambda: made.open(note, "s"),
            lambda: made.open(note | {"wrapped": "x"}, "r"),
        )),
        caplog.text,
    ]  # fmt: skip
    text = "\n".join(shown)
    for secret in (RAW, OTHER, data_key, RAW[:31]):
        for form in (secret.hex(), base64.b64encode(secret).decode()[:20], repr(secret)[2:20]):
            assert form not in text
    assert PHRASE[:11] not in text


def failure(call: Callable[[], object]) -> str:
    """All that a failure shows of itself, its causes and facts included."""
    with pytest.raises(SureholdError) as caught:
        call()
    error = caught.value
    chain = "".join(
        line
        for part in traceback.TracebackException.from_exception(error).format(chain=True)
        for line in part.splitlines(keepends=True)
        if not line.startswith("    ")
    )
    return f"{error} {error!r} {error.facts} {chain}"


def test_a_note_holds_no_key_that_was_not_wrapped() -> None:
    for key in (RAW, PHRASE, Kms(pad=os.urandom(32))):
        data_key, note = ring(key).new_run_key("r")
        text = json.dumps(note)
        assert data_key.hex() not in text and base64.b64encode(data_key).decode() not in text
