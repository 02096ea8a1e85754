"""Signatures: the shape of an agent's answer."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from surehold.errors import UsageError


class _Field:
    def __init__(self, description: str, output: bool) -> None:
        self.description = description
        self.output = output


def InputField(description: str = "") -> Any:
    """An input of a `Signature`, which the task gives."""
    return _Field(description, False)


def OutputField(description: str = "") -> Any:
    """Part of the answer that a `Signature` asks for."""
    return _Field(description, True)


class Signature:
    """An agent's task, in its docstring, and the fields of its answer.

    The answer is a dict of the output fields. A pydantic model or a dataclass can be given instead
    of a signature; then the answer is an instance of it.

    >>> class Report(Signature):
    ...     "Write a short report."
    ...     topic: str = InputField("what it is about")
    ...     text: str = OutputField("the report")
    ...     confidence: float = OutputField("from 0 to 1")
    >>> read_signature(Report()).schema["required"]
    ['text', 'confidence']
    """


class AnswerFormat(msgspec.Struct, frozen=True):
    """The wanted answer: instructions, schema, and conversion."""

    instructions: str
    schema: dict[str, Any]
    read: Callable[[Any], Any]
    """Converts parsed JSON, or raises a `UsageError` that a model can read."""


def read_signature(given: object) -> AnswerFormat | None:
    """Read a signature, a pydantic model or a dataclass; None for None."""
    if given is None:
        return None
    cls = given if isinstance(given, type) else type(given)
    if issubclass(cls, Signature):
        return _own(cls)
    about = inspect.cleandoc(cls.__doc__ or "")
    if hasattr(cls, "model_json_schema"):
        return AnswerFormat(about, cls.model_json_schema(), _reader(cls.model_validate))  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct):
        if about.startswith(f"{cls.__name__}("):
            about = ""  # the one that dataclass makes up
        schema = _inlined(msgspec.json.schema(cls))
        return AnswerFormat(about, schema, _reader(lambda data: msgspec.convert(data, cls)))
    raise UsageError(
        f"a {cls.__name__} is not a signature",
        hint="give a Signature, a pydantic model, a dataclass",
    )


def _own(cls: type[Signature]) -> AnswerFormat:
    hints = typing.get_type_hints(cls)
    fields = {name: value for name, value in vars(cls).items() if isinstance(value, _Field)}
    outputs = {name: field for name, field in fields.items() if field.output}
    if not outputs:
        raise UsageError(
            f"signature {cls.__name__} has no output", hint="text: str = OutputField('the text')"
        )
    shape = msgspec.defstruct(cls.__name__, [(name, hints.get(name, str)) for name in outputs])
    schema = _inlined(msgspec.json.schema(shape))
    for name, field in outputs.items():
        if field.description:
            schema["properties"][name]["description"] = field.description
    about = inspect.cleandoc(cls.__doc__ or "")
    inputs = [f"{name}: {f.description}" for name, f in fields.items() if not f.output]
    if inputs:
        about = "\n".join([about, "The task gives:", *inputs]).strip()
    read = _reader(lambda data: msgspec.structs.asdict(msgspec.convert(data, shape)))
    return AnswerFormat(about, schema, read)


def _inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with a top-level reference replaced by its definition."""
    made = dict(schema)
    if "$ref" not in made:
        return made
    definitions = dict(made["$defs"])
    top = dict(definitions.pop(made["$ref"].rpartition("/")[2]))
    top["properties"] = {name: dict(each) for name, each in top["properties"].items()}
    return {**top, "$defs": definitions} if definitions else top


def _reader(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(data: Any) -> Any:
        try:
            return convert(data)
        except ValueError as error:
            raise UsageError(f"the answer does not fit: {error}") from error

    return read
