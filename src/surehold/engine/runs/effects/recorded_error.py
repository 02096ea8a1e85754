"""Exceptions in the journal: written as a value, and raised again on a replay."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from surehold import errors
from surehold.core.values import Opaque, decode, encode
from surehold.errors import EncodeError, RunError, SureholdError


def write_error(error: Exception, redact: Callable[[str], str]) -> dict[str, Any]:
    """Encode *error* for `read_error`; texts go through *redact*."""
    try:
        return {"value": msgspec.Raw(encode(error))}  # its class is registered
    except EncodeError:
        pass
    args = [redact(value) if isinstance(value, str) else value for value in _arguments(error)]
    try:
        text = encode(args)
    except EncodeError:
        text = encode([redact(str(error))])
    bases = [base.__name__ for base in type(error).__mro__ if _is_known(base)]
    written = {"bases": bases, "args": msgspec.Raw(text)}
    if type(error) is not _known(type(error).__name__):
        written["class"] = _name_of(type(error))
        written["attributes"] = msgspec.Raw(encode(_attributes(error, redact)))
    return written


def _attributes(error: Exception, redact: Callable[[str], str]) -> dict[str, Any]:
    """The attributes of an exception, as far as they can be stored."""
    found: dict[str, Any] = {}
    for name, value in vars(error).items():
        kept = redact(value) if isinstance(value, str) else value
        with suppress(EncodeError):
            encode(kept)
            found[name] = kept
    return found


def read_error(kind: str, text: str, raised: Any, what: str) -> Exception:
    """The exception that `write_error` wrote, of class name *kind* and with *text*.

    A registered class comes back as itself, a built-in one too, and any other that this process
    has: no module is imported and no constructor runs. If this process does not have the class,
    returns a `RunError` subclass with the same name and nearest built-in base.
    """
    written = raised if isinstance(raised, dict) else {}
    if "value" in written:
        value = decode(msgspec.json.encode(written["value"]))
        if isinstance(value, Exception) and not isinstance(value, Opaque):
            return value
    bases = [base for name in written.get("bases", [kind]) if (base := _known(name)) is not None]
    if bases and bases[0].__name__ == kind:
        made = _made(bases[0], written, text)
        if made is not None:
            return made
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
