"""Command lines, parsed as the signature of a function declares them.

A parameter is declared as in ``limit: Annotated[int, Option("-n", "--limit", help="How many.")]``.
Its type is text, a number, a `Path` or a list of these; a bool is a flag. argparse does the parsing
because larger libraries take longer to import than a command takes to run.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, NoReturn, Union, get_args, get_origin

from surehold.errors import UsageError
from surehold.storage.addresses import nearest

_UNKNOWN = re.compile(r"unrecognized arguments: (?P<option>--[^ =]+).*", re.S)
_WIDTH = 80
_COLUMN = 22


class Argument:
    """A parameter given by position."""

    def __init__(self, metavar: str = "", help: str = "") -> None:
        self.metavar = metavar
        self.help = help


class Option:
    """A parameter given by name: *names*, or that of the parameter."""

    def __init__(
        self,
        *names: str,
        metavar: str = "",
        help: str = "",
        min: float | None = None,
        max: float | None = None,
    ) -> None:
        self.names = names
        self.metavar = metavar
        self.help = help
        self.min = min
        self.max = max


class Parameter(NamedTuple):
    """A parameter of a command."""

    name: str
    kind: Argument | Option
    type: type
    many: bool
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def names(self) -> tuple[str, ...]:
        """Its spellings; of an argument, the word that help uses."""
        if isinstance(self.kind, Argument):
            return (self.kind.metavar or self.name.upper(),)
        return self.kind.names or (f"--{self.name.replace('_', '-')}",)


class CommandSignature:
    """The parameters of a command."""

    def __init__(self, name: str, about: str, parameters: Sequence[Parameter]) -> None:
        self.name = name
        self.about = inspect.cleandoc(about)
        self.parameters = tuple(parameters)

    @property
    def arguments(self) -> list[Parameter]:
        return [one for one in self.parameters if isinstance(one.kind, Argument)]

    @property
    def options(self) -> list[Parameter]:
        return [one for one in self.parameters if isinstance(one.kind, Option)]

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """The values of all parameters; a `UsageError` if something is wrong."""
        parser = _Parser(self.name, [name for one in self.options for name in one.names])
        for parameter in self.parameters:
            _add(parser, parameter)
        given = self._given(parser, list(words))
        for parameter in self.options:
            _check(parameter, given[parameter.name], self.name)
        return given

    def _given(self, parser: argparse.ArgumentParser, words: list[str]) -> dict[str, Any]:
        if "--" not in words:
            return vars(parser.parse_intermixed_args(words))
        # Intermixed parsing would take what follows "--" for options.
        last = self.arguments[-1] if self.arguments else None
        if last is None or not last.many or last.required:
            return vars(parser.parse_args(words))
        at = words.index("--")
        given = vars(parser.parse_intermixed_args(words[:at]))
        given[last.name] = [*(given[last.name] or []), *map(last.type, words[at + 1 :])]
        return given

    def help(self) -> str:
        """The text of ``--help``."""
        return "\n".join(self._help_lines()) + "\n"

    def _help_lines(self) -> Iterator[str]:
        yield " ".join([f"Usage: surehold {self.name} [OPTIONS]", *map(_usage, self.arguments)])
        for paragraph in self.about.split("\n\n"):
            yield ""
            yield from textwrap.wrap(paragraph, _WIDTH, break_on_hyphens=False)
        for title, parameters in (("Arguments", self.arguments), ("Options", self.options)):
            if parameters:
                yield ""
                yield f"{title}:"
            for parameter in parameters:
                yield from _described(parameter)


def parameters_of(function: Callable[..., Any]) -> Iterator[Parameter]:
    """The declared parameters; others are not for the command line.

    ``**more: Annotated[Any, table]`` declares all options of a table, before the others.
    """
    declared = inspect.signature(function, eval_str=True).parameters.values()
    for one in sorted(declared, key=lambda one: one.kind is not one.VAR_KEYWORD):
        marks = getattr(one.annotation, "__metadata__", None)
        if marks and one.kind is one.VAR_KEYWORD:
            yield from (parameter(name, kind, None) for name, kind in marks[0].items())
        elif marks:
            yield parameter(one.name, one.annotation, one.default)


def parameter(name: str, annotation: Any, default: Any) -> Parameter:
    """A parameter of a declaration."""
    kind = annotation.__metadata__[0]
    accepted = annotation.__origin__
    if get_origin(accepted) in (Union, UnionType):
        accepted = next(one for one in get_args(accepted) if one is not type(None))
    many = get_origin(accepted) is list
    if many:
        accepted = get_args(accepted)[0]
    return Parameter(name, kind, accepted, many, default)


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the process."""

    def __init__(self, name: str, options: list[str]) -> None:
        super().__init__(prog=f"surehold {name}", add_help=False, allow_abbrev=False)
        self._options = options

    def error(self, message: str) -> NoReturn:
        unknown = _UNKNOWN.fullmatch(message)
        near = nearest(unknown["option"], self._options) if unknown else ""
        raise UsageError(message, hint=f"{near}{self.prog} --help")


def _add(parser: argparse.ArgumentParser, parameter: Parameter) -> None:
    kind = parameter.kind
    options: dict[str, Any] = {} if parameter.required else {"default": parameter.default}
    if parameter.type is not bool:
        options["type"] = parameter.type
    if isinstance(kind, Argument):
        if parameter.many:
            options["nargs"] = "+" if parameter.required else "*"
        elif not parameter.required:
            options["nargs"] = "?"
        parser.add_argument(parameter.name, metavar=parameter.names[0], **options)
        return
    if parameter.type is bool:
        options["action"] = "store_true"
    elif parameter.many:
        options["action"] = "append"
    parser.add_argument(*parameter.names, dest=parameter.name, **options)


def _check(parameter: Parameter, value: Any, command: str) -> None:
    kind = parameter.kind
    assert isinstance(kind, Option)
    low, high = kind.min, kind.max
    if value is None or (low is None and high is None):
        return
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f"from {low} on" if high is None else f"from {low} to {high}"
        raise UsageError(
            f"{parameter.names[-1]} is {value}", hint=f"give a number {bounds}", command=command
        )


def _usage(parameter: Parameter) -> str:
    name = parameter.names[0]
    shown = name if parameter.required else f"[{name}]"
    return f"{shown}..." if parameter.many else shown


def _described(parameter: Parameter) -> Iterator[str]:
    kind = parameter.kind
    head = ", ".join(sorted(parameter.names, key=len))
    if isinstance(kind, Option) and parameter.type is not bool:
        words = {int: "N", float: "SECONDS", Path: "FILE"}
        head += f" {kind.metavar or words.get(parameter.type, 'TEXT')}"
    about = kind.help
    if parameter.default and not parameter.required and parameter.type is not bool:
        about = f"{about} [{parameter.default}]"
    lines = textwrap.wrap(about, _WIDTH - _COLUMN - 4, break_on_hyphens=False) or [""]
    if len(head) > _COLUMN:
        yield f"  {head}"
        head = ""
    yield f"  {head:<{_COLUMN}}  {lines[0]}".rstrip()
    for line in lines[1:]:
        yield f"  {'':<{_COLUMN}}  {line}"
