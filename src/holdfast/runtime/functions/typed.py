"""Arguments and results of functions, as stored and as annotated."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from holdfast.errors import ShapeError, UsageError


class Typed:
    """Reads and writes what a function takes and returns, by its annotations."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._name = getattr(function, "__qualname__", repr(function))

    @cached_property
    def signature(self) -> inspect.Signature:
        """The function's parameters."""
        return inspect.signature(self._function)

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
            raise UsageError(f"{self._name}: {error}") from None
        bound.apply_defaults()
        try:
            return {name: self._read(name, value) for name, value in bound.arguments.items()}
        except msgspec.ValidationError as error:
            raise UsageError(f"{self._name}: {error}") from None

    def call_with(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments that were stored, ready for the call."""
        bound = self.signature.bind_partial()
        try:
            for name in self.signature.parameters:
                if name in arguments:
                    bound.arguments[name] = self._read(name, arguments[name])
        except msgspec.ValidationError as error:
            raise ShapeError(f"the stored arguments of {self._name} do not fit: {error}") from error
        return bound.args, bound.kwargs

    def read(self, value: Any) -> Any:
        """A stored result in the type that the function returns."""
        try:
            return self._read("return", value)
        except msgspec.ValidationError as error:
            raise ShapeError(f"the stored result of {self._name} does not fit: {error}") from error

    def write(self, value: Any) -> Any:
        """*value* as something that can be stored where its class is not registered."""
        if hasattr(value, "model_dump"):
            return value.model_dump(mode="json")
        try:
            return msgspec.to_builtins(value, builtin_types=(bytes, bytearray))
        except TypeError:
            return value

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
    if isinstance(hint, type) and hasattr(hint, "model_validate"):
        if isinstance(value, hint):
            return value
        try:
            return hint.model_validate(value)
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from error
    try:
        return msgspec.convert(value, hint)
    except TypeError:
        return value  # a type that says nothing to msgspec
