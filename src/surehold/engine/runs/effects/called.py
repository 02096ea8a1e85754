"""A call with its arguments, which are values: the function gets copies of them.

A replay returns a recorded outcome and does not call the function. So nothing that the function
does to its arguments may be seen by the code around the call, in the first life either.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from surehold.core.records import digest_of
from surehold.core.values import can_change, decode, encode, encode_tree
from surehold.engine.hooks import HookManager
from surehold.engine.runs.effects.inputs import inputs_text
from surehold.errors import EncodeError

_LONG = 1 << 62


class Called:
    """A function, and the arguments of its call.

    Each attempt gets its own copies of the arguments that can change. The function gets
    the original of an argument that cannot be stored.
    """

    __slots__ = ("_copies", "_texts", "args", "fn", "kwargs")

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self._texts: dict[int | str, bytes] = {}
        """The stored forms of the arguments that can change, by place or name."""
        self._copies: dict[int | str, Any] = {}

    def digest(self) -> str:
        """The digest of the arguments as of now, which are the ones of the call."""
        self._texts = {}
        parts = [self._part(at, value) for at, value in enumerate(self.args)]
        if self.kwargs:
            for name in sorted(self.kwargs):
                parts.append(name.encode() + b"=" + self._part(name, self.kwargs[name]))
        return digest_of(b"\0".join(parts))

    def _part(self, name: int | str, value: Any) -> bytes:
        if is_short(value):
            return encode_tree(value)
        try:
            text = encode(value)
        except EncodeError:
            return f"<{type(value).__qualname__}>".encode()
        if can_change(value):
            self._texts[name] = text
        return text

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for one attempt."""
        if not self._texts:
            return self.args, self.kwargs
        self._copies = {name: decode(text) for name, text in self._texts.items()}
        args = tuple(self._copies.get(at, value) for at, value in enumerate(self.args))
        return args, {name: self._copies.get(name, value) for name, value in self.kwargs.items()}

    def inputs(self, hooks: HookManager | None) -> str:
        """The arguments as a person reads them, without secrets."""
        return inputs_text(self.fn, self.args, self.kwargs, hooks)

    def warn_if_changed(self, what: str, result: bytes) -> None:
        """Warn once if the call *what* changed an argument that is not in its *result*."""
        for name in self._copies:
            if self._is_changed(name, result):
                code = getattr(inspect.unwrap(self.fn), "__code__", None)
                at = (code.co_filename, code.co_firstlineno) if code else (what, 1)
                if at not in _warned:
                    _warned.add(at)
                    warnings.warn_explicit(
                        f"{what} changes its argument {self._parameter(name)} in place, and its"
                        " caller does not see that: a recorded call gets a copy, so that a replay"
                        " is the same (return the changed value)",
                        RuntimeWarning,
                        *at,
                    )

    def _is_changed(self, name: int | str, result: bytes) -> bool:
        copy = self._copies[name]
        with contextlib.suppress(Exception):  # of a class of the user's, or an array
            if copy == (self.args[name] if isinstance(name, int) else self.kwargs[name]):
                return False
        try:
            text = encode(copy)
        except EncodeError:
            return True
        return text != self._texts[name] and text not in result

    def _parameter(self, name: int | str) -> str:
        if isinstance(name, int):
            with contextlib.suppress(TypeError, ValueError, IndexError):
                return repr([*inspect.signature(self.fn).parameters][name])
            return f"number {name + 1}"
        return repr(name)


_warned: set[tuple[str, int]] = set()
"""The functions that a warning was given of, by file and line."""


def args_digest(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """A digest of arguments; of one that cannot be stored, only the type counts."""
    return Called(args_digest, args, {**kwargs}).digest()


def is_short(value: Any) -> bool:
    """True for a short plain value, which needs no weighing and cannot change."""
    kind = type(value)
    if kind is int:
        return bool(-_LONG < value < _LONG)
    return value is None or kind is bool or (kind is str and value.isascii())
