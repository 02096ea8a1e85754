"""Classes of fields are stored without being registered, and read without running any code."""

from __future__ import annotations

import dataclasses
import enum
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy
import pydantic
import pytest

from surehold.core.values import Opaque, decode, encode
from surehold.core.values.codec import UnknownTypeWarning
from surehold.errors import DecodeError, EncodeError


@dataclasses.dataclass
class Order:
    number: int
    tags: list[str] = dataclasses.field(default_factory=list)


class Color(enum.Enum):
    RED = 1


class Place(NamedTuple):
    x: int
    y: int


class Note(msgspec.Struct):
    text: str


class Answer(pydantic.BaseModel):
    words: list[str]


@dataclasses.dataclass
class Loud:
    made: ClassVar[list[str]] = []
    text: str = ""

    def __post_init__(self) -> None:
        self.made.append(self.text)


@dataclasses.dataclass
class EndsLoudly:
    text: str

    def __del__(self) -> None:
        raise AssertionError


class Guessing(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    "value",
    [
        Order(1, ["a"]),
        Color.RED,
        Place(1, 2),
        Note("a"),
        Answer(words=["a"]),
        deque([1, 2], 5),
        defaultdict(list, {"a": [1]}),
        defaultdict(None, {"a": 1}),
        Counter("aab"),
        OrderedDict([("b", 1), ("a", (2,))]),
        range(2, 9, 3),
        {"orders": [Order(1), Order(2)], Place(1, 2): {Color.RED}},
    ],
)
def test_a_value_comes_back_as_what_it_was(value: Any) -> None:
    again = decode(encode(value), strict=True)
    assert again == value and type(again) is type(value)
    assert getattr(again, "maxlen", None) == getattr(value, "maxlen", None)
    assert getattr(again, "default_factory", None) == getattr(value, "default_factory", None)


@pytest.mark.parametrize(
    "value",
    [
        numpy.arange(6).reshape(2, 3),
        numpy.zeros((0, 3), "f4"),
        numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
        numpy.array(["kelp", "sea"]),
        numpy.array(["2026-11-18"], "M8[D]"),
        numpy.float64(1.5),
        numpy.int8(3),
        numpy.bool_(True),
        numpy.datetime64("2026-11-18T10:00", "ns"),
        numpy.str_("kelp"),
    ],
)
def test_an_array_comes_back_with_its_type_and_form(value: Any) -> None:
    again = decode(encode({"a": value}), strict=True)["a"]
    assert type(again) is type(value) and again.dtype == value.dtype
    assert again.shape == value.shape and numpy.all(again == value)
    assert not isinstance(again, numpy.ndarray) or again.flags.writeable


@pytest.mark.parametrize(
    "value", [numpy.array([object()]), numpy.zeros(2, [("a", "i4")]), numpy.void(b"ab")]
)
def test_an_array_of_objects_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError, match="cannot be stored") as caught:
        encode(value)
    assert "tolist" in str(caught.value.hint)


@pytest.mark.parametrize("dtype", ["O", "|O8", "i4,O", "V8"])
def test_a_forged_array_of_objects_is_refused(dtype: str) -> None:
    body = encode([dtype, [1], b"12345678"]).decode()
    with pytest.raises(DecodeError):
        decode(f'{{"$t":"numpy.ndarray","v":{body}}}'.encode(), strict=True)


def test_attributes_that_are_no_fields_are_kept() -> None:
    order = Order(1)
    order.paid = True  # type: ignore[attr-defined]
    assert decode(encode(order)).paid is True


def test_no_constructor_is_called_when_a_value_is_read() -> None:
    text = encode(Loud("a"))
    Loud.made.clear()
    assert decode(text) == decode(text) and Loud.made == []


@pytest.mark.parametrize("cls", ["EndsLoudly", "Guessing"])
def test_a_class_that_would_run_its_own_code_must_be_registered(cls: str) -> None:
    text = f'{{"$t":"{__name__}.{cls}","v":{{"text":"a"}}}}'.encode()
    with pytest.raises(DecodeError, match="no type is registered"):
        decode(text, strict=True)


def test_no_name_in_stored_text_imports_a_module() -> None:
    name = "mailbox"
    assert name not in sys.modules
    with pytest.warns(UnknownTypeWarning):
        assert isinstance(decode(b'{"$t":"mailbox.Mailbox","v":1}'), Opaque)
    assert name not in sys.modules


@pytest.mark.parametrize("name", ["subprocess.Popen", "os.system", "builtins.open", "sys.exit"])
def test_what_is_no_class_of_fields_is_not_found(name: str) -> None:
    with pytest.raises(DecodeError, match="no type is registered"):
        decode(f'{{"$t":"{name}","v":["true"]}}'.encode(), strict=True)


def test_a_local_class_is_refused_with_a_way_out() -> None:
    @dataclasses.dataclass
    class Local:
        a: int

    with pytest.raises(EncodeError) as caught:
        encode({"a": Local(1)})
    assert caught.value.path == "a" and "top of its module" in str(caught.value.hint)


PROGRAM = """
import dataclasses, os, signal
import surehold

@dataclasses.dataclass
class Quote:
    text: str

@surehold.step
def look():
    print("looked", flush=True)
    return Quote("the sea")

with surehold.run("r", storage="sqlite:///runs.db") as run:
    quote = look()
    assert type(quote) is Quote
    if not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    print(quote.text)
"""


def test_a_script_that_was_killed_reads_its_own_class_again(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py"]
    out = [
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
        for _ in range(2)
    ]
    assert out == ["looked\n", "the sea\n"]
