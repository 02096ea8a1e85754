"""Arguments and results of functions, as stored and as annotated."""

from __future__ import annotations

import inspect
import typing
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import PurePath
from typing import Any

import msgspec

from surehold.core.values import encode
from surehold.errors import EncodeError, ShapeError, SureholdError, UsageError
from surehold.storage.addresses import nearest

_OPTIONS = ("run_id", "storage", "wait", "lease_seconds", "on_event", "signals", "queue")


class Typed:
    """Reads and writes what a function takes and returns, by its annotations."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._name = getattr(function, "__qualname__", repr(function))

    @cached_property
    def signature(self) -> inspect.Signature:
        """The function's parameters."""
        return inspect.signature(self._function)

    @property
    def _plain(self) -> str:
        """The parameters without annotations and defaults, as in ``(pages, limit)``."""
        bare = [
            one.replace(annotation=one.empty, default=one.empty)
            for one in self.signature.parameters.values()
        ]
        return str(inspect.Signature(bare))

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._function)
        except (NameError, TypeError):
            return {}  # an annotation that cannot be evaluated here says nothing

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by parameter, converted; a `UsageError` if they do not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"{self._name}: {error}", hint=self._meant(kwargs)) from None
        bound.apply_defaults()
        try:
            return {name: self._read(name, value) for name, value in bound.arguments.items()}
        except msgspec.ValidationError as error:
            raise UsageError(f"{self._name}: {error}") from None

    def _meant(self, kwargs: Mapping[str, Any]) -> str:
        """A hint: what the function takes, or the option that was misspelled."""
        for name in kwargs.keys() - self.signature.parameters.keys():
            if near := nearest(name, _OPTIONS):
                return f"{near}workflow.run() and options() take it"
        return f"it takes {self._plain}; options such as run_id= are given by name"

    def call_with(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments that were stored, ready for the call."""
        bound = self.signature.bind_partial()
        try:
            for name in self.signature.parameters:
                if name in arguments:
                    bound.arguments[name] = self._read(name, arguments[name])
        except msgspec.ValidationError as error:
            raise ShapeError(
                f"the stored arguments of {self._name} do not fit: {error}",
                hint="keep the parameters that the run began with, or begin a new run",
            ) from error
        return bound.args, bound.kwargs

    def read(self, value: Any) -> Any:
        """A recorded result in the type that the function returns."""
        if type(value) is self._hints.get("return"):
            return value
        what = f"the recorded result of {self._name} does not fit its annotation"
        hint = "correct the annotation and resume: the result is kept"
        return self._result(value, ShapeError, what, hint)

    def returned(self, value: Any) -> Any:
        """*value*, just returned, in its annotated type, or a `UsageError`."""
        what = f"{self._name} did not return what its annotation says"
        hint = "correct the annotation or the function, then resume the run"
        return self._result(value, UsageError, what, hint)

    def _result(self, value: Any, kind: type[SureholdError], what: str, hint: str) -> Any:
        try:
            return self._read("return", value)
        except msgspec.ValidationError as error:
            raise kind(f"{what}: {error}", hint=hint) from None

    def write(self, value: Any, name: str = "return") -> Any:
        """*value* as plain values from which the annotation of *name* makes it again.

        An `EncodeError` if it does not: without the annotation a replay would see another type.
        """
        try:
            plain = msgspec.to_builtins(
                value, builtin_types=(bytes, bytearray), enc_hook=_plain_value
            )
            if _same_types(self._read(name, plain), value):
                return plain
        except (TypeError, ValueError, RecursionError):
            pass
        encode(value)  # raises what is wrong with it
        return value

    def storable(self, value: Any, name: str = "return") -> Any:
        """*value*, or plain values that stand for it if its class is not registered."""
        try:
            encode(value)
            return value
        except EncodeError as error:
            try:
                return self.write(value, name)
            except EncodeError:
                what = "the result" if name == "return" else f"parameter {name!r}"
                error.add_note(f"surehold: or annotate {what} of {self._name} with its class")
                raise error from None

    def _read(self, name: str, value: Any) -> Any:
        hint = self._hints.get(name)
        if hint is None or hint is Any or type(value) is hint:
            return value
        parameter = self.signature.parameters.get(name)
        if parameter is not None and parameter.kind is parameter.VAR_POSITIONAL:
            return tuple(_converted(item, hint) for item in value)
        if parameter is not None and parameter.kind is parameter.VAR_KEYWORD:
            return {key: _converted(item, hint) for key, item in value.items()}
        try:
            return _converted(value, hint)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{name}: {error}") from None


def _converted(value: Any, hint: Any) -> Any:
    try:
        if isinstance(hint, type) and type(value) is not bool and isinstance(value, hint):
            return value
    except TypeError:
        pass  # a TypedDict, or a Protocol
    try:
        return msgspec.convert(value, hint, dec_hook=_made)
    except msgspec.ValidationError:
        raise
    except TypeError:
        return value  # a type that says nothing to msgspec


def _made(hint: type, value: Any) -> Any:
    """An object of a class that msgspec does not know, made of a plain value."""
    if isinstance(value, hint):
        return value
    if hasattr(hint, "model_validate"):
        return hint.model_validate(value)
    if issubclass(hint, PurePath) and isinstance(value, str):
        return hint(value)
    if issubclass(hint, defaultdict) and isinstance(value, dict):
        return hint(None, value)
    if issubclass(hint, dict) and isinstance(value, dict):
        return hint(value)
    raise ValueError(f"Expected `{hint.__name__}`, got `{type(value).__name__}`")


def _plain_value(value: Any) -> Any:
    """The reverse of `_made`."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no plain form")


def _same_types(made: Any, value: Any) -> bool:
    """True if the two have the same classes, also inside lists and dicts."""
    if type(made) is not type(value):
        return False
    if isinstance(value, dict):
        return made.keys() == value.keys() and all(_same_types(made[k], value[k]) for k in value)
    if isinstance(value, list | tuple):
        return len(made) == len(value) and all(map(_same_types, made, value))
    return True
