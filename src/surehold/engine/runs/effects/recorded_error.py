"""Exceptions in the journal: written as a value, and raised again on a replay."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from surehold import errors
from surehold.core.values import Opaque, decode, encode, is_registered
from surehold.errors import EncodeError, RunError, SureholdError

_DEEPEST = 8
"""Exceptions behind one another that are kept."""
_OWN = "__surehold_effects__"
"""The attribute that tells which recorded calls an exception came from."""
_LINKS = "__cause__", "__context__"


def write_error(error: Exception, redact: Callable[[str], str]) -> dict[str, Any]:
    """Encode *error* for `read_error`, with its notes, attributes, cause and context.

    Texts go through *redact*.
    """
    return _write(error, redact, ())


def _write(
    error: Exception, redact: Callable[[str], str], outer: tuple[BaseException, ...]
) -> dict[str, Any]:
    written: dict[str, Any] = {}
    outer = (*outer, error)

    def inner(other: BaseException | None) -> dict[str, Any] | None:
        """An exception behind *error*, unless it is a signal or stands before it already."""
        if not isinstance(other, Exception) or other in outer or len(outer) > _DEEPEST:
            return None
        told = {"kind": type(other).__name__, "text": redact(_text(other))}
        return told | _write(other, redact, outer)

    behind = {name: inner(getattr(error, name)) for name in _LINKS}
    written.update((name, found) for name, found in behind.items() if found is not None)
    if error.__suppress_context__ and behind["__cause__"] is None:
        written["suppressed"] = True
    if isinstance(error, ExceptionGroup):
        written["group"] = redact(error.message)
        written["members"] = [found for one in error.exceptions if (found := inner(one))]
    if is_registered(type(error)):
        with suppress(EncodeError):
            return written | {"value": msgspec.Raw(encode(error))}
    args = [redact(value) if isinstance(value, str) else value for value in _arguments(error)]
    try:
        text = encode(args)
    except EncodeError:
        text = encode([redact(_text(error))])
    bases = [base.__name__ for base in type(error).__mro__ if _is_known(base)]
    written |= {"bases": bases, "args": msgspec.Raw(text)}
    if type(error) is not _known(type(error).__name__):
        written["class"] = _name_of(type(error))
    if attributes := _attributes(error, redact):
        written["attributes"] = msgspec.Raw(encode(attributes))
    return written


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # of the user's class
        return ""


def _attributes(error: Exception, redact: Callable[[str], str]) -> dict[str, Any]:
    """The attributes of an exception and its notes, as far as they can be stored."""
    found: dict[str, Any] = {}
    ours = isinstance(error, SureholdError)
    for name, value in vars(error).items():
        if name == _OWN or (ours and name != "__notes__" and not _is_plain(value)):
            continue  # a fact of ours may be a whole state
        kept = redact(value) if isinstance(value, str) else value
        if name == "__notes__" and isinstance(value, list):
            kept = [redact(note) for note in value if isinstance(note, str)]
        with suppress(EncodeError):
            encode(kept)
            found[name] = kept
    return found


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def read_error(kind: str, text: str, raised: Any, what: str) -> Exception:
    """The exception that `write_error` wrote, of class name *kind* and with *text*.

    A registered class comes back as itself, a built-in one too, and any other that this process
    has: no module is imported and no constructor runs. If this process does not have the class,
    returns a `RunError` subclass with the same name and nearest built-in base.
    """
    written = raised if isinstance(raised, dict) else {}
    made = _read(kind, text, written, what)
    for name in _LINKS:
        behind = written.get(name)
        if isinstance(behind, dict):
            setattr(made, name, _read_inner(behind, what))
    if "__cause__" not in written:  # setting a cause suppresses the context
        made.__suppress_context__ = written.get("suppressed") is True
    return made


def _read_inner(written: dict[str, Any], what: str) -> Exception:
    return read_error(str(written.get("kind")), str(written.get("text", "")), written, what)


def _read(kind: str, text: str, written: dict[str, Any], what: str) -> Exception:
    if written.get("members"):
        members = [_read_inner(one, what) for one in written["members"] if isinstance(one, dict)]
        return _noted(ExceptionGroup(str(written.get("group", "")), members), written)
    if "value" in written:
        value = decode(msgspec.json.encode(written["value"]))
        if isinstance(value, Exception) and not isinstance(value, Opaque):
            return value
    bases = [base for name in written.get("bases", [kind]) if (base := _known(name)) is not None]
    if bases and bases[0].__name__ == kind:
        made = _made(bases[0], written, text)
        if made is not None:
            return _noted(made, written)
    near = next((base for base in bases if not issubclass(base, SureholdError)), None)
    if (found := _loaded(written.get("class"))) is not None:
        return _bare(found, near or Exception, written)
    made_class = _stand_in(kind, near)
    return made_class(f"{what} had ended with {kind}: {text}", error_type=kind)


def _name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _loaded(name: Any) -> type[Exception] | None:
    """The class of exceptions that this process has under that name."""
    waiting: list[type[Exception]] = [Exception]
    seen: set[type] = set()
    while name and waiting:
        for cls in type.__subclasses__(waiting.pop()):
            if cls not in seen:
                if _name_of(cls) == name:
                    return cls
                seen.add(cls)
                waiting.append(cls)
    return None


def _bare(cls: type[Exception], near: type[Exception], written: dict[str, Any]) -> Exception:
    """An exception of a class of the user's, made without calling its code."""
    if not issubclass(cls, near):
        near = Exception
    args = decode(msgspec.json.encode(written.get("args", [])))
    made = near.__new__(cls, *args)
    near.__init__(made, *args)
    return _noted(made, written)


def _noted(made: Exception, written: dict[str, Any]) -> Exception:
    """*made* with its recorded attributes and notes."""
    vars(made).update(decode(msgspec.json.encode(written.get("attributes", {}))))
    return made


def _arguments(error: Exception) -> tuple[Any, ...]:
    """The arguments that make an equal exception; an OSError has more than ``args``."""
    reduced = error.__reduce__() if type(error).__module__ == "builtins" else None
    if isinstance(reduced, tuple) and reduced[0] is type(error):
        return tuple(reduced[1])
    return error.args


def _is_known(base: type) -> bool:
    return base is not Exception and issubclass(base, Exception) and _known(base.__name__) is base


def _known(name: str) -> type[Exception] | None:
    for module in (builtins, errors):
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return None


def _made(cls: type[Exception], written: dict[str, Any], text: str) -> Exception | None:
    if issubclass(cls, SureholdError) or "args" not in written:
        args = [text]
    else:
        args = decode(msgspec.json.encode(written["args"]))
    try:
        return cls(*args)
    except TypeError:
        return None


_stand_ins: dict[tuple[str, type[Exception]], type[RunError]] = {}


def _stand_in(kind: str, near: type[Exception] | None) -> type[RunError]:
    if near is None or near is Exception:
        return RunError
    if (kind, near) not in _stand_ins:
        try:
            made = type(kind, (RunError, near), {"__module__": __name__})
        except TypeError:
            made = RunError
        _stand_ins[kind, near] = made
    return _stand_ins[kind, near]
