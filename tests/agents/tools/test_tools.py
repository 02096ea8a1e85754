"""Tools: what a model is told of a function, and how its arguments reach it."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Literal

import msgspec
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from surehold.agents.models import ToolCall
from surehold.agents.tools.definition import read_tool, text_of, tool
from surehold.agents.tools.signature import InputField, OutputField, Signature, read_signature
from surehold.errors import UsageError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Place:
    city: str
    zip: int = 0


class Person(BaseModel):
    name: str
    age: int


def everything(
    text: str,
    number: int,
    ratio: float,
    colour: Colour,
    kind: Literal["a", "b"],
    place: Place,
    person: Person,
    words: list[str],
    table: dict[str, int],
    maybe: str | None = None,
    free=None,
    limit: int = 3,
) -> str:
    """Do it all.

    And more words that a model need not read.

    Args:
        text: what to do
        limit (int): how often
    """
    return f"{text} {number} {ratio} {colour} {kind} {place} {person} {words} {table} {maybe}"


def test_the_schema_comes_from_the_signature_and_the_docstring() -> None:
    spec = read_tool(everything).spec
    assert (spec.name, spec.description) == ("everything", "Do it all.")
    schema: Any = spec.parameters
    Draft202012Validator.check_schema(schema)
    properties = schema["properties"]
    assert properties["text"] == {"type": "string", "description": "what to do"}
    assert properties["number"] == {"type": "integer"}
    assert properties["limit"] == {"type": "integer", "default": 3, "description": "how often"}
    assert properties["kind"]["enum"] == ["a", "b"]
    assert properties["free"] == {}
    assert schema["required"] == [
        *("text", "number", "ratio", "colour", "kind", "place", "person", "words", "table")
    ]
    assert schema["$defs"]["Place"]["required"] == ["city"]
    assert schema["additionalProperties"] is False


async def test_arguments_are_converted_to_what_the_function_wants() -> None:
    given = {
        "text": "x",
        "number": 1,
        "ratio": 2,
        "colour": "red",
        "kind": "a",
        "place": {"city": "Rome"},
        "person": {"name": "Ann", "age": 3},
        "words": ["w"],
        "table": {"k": 1},
    }
    made = read_tool(everything)
    read = made.read(given)
    assert (read["colour"], read["place"]) == (Colour.RED, Place("Rome"))
    assert read["person"] == Person(name="Ann", age=3)
    assert "Place(city='Rome', zip=0)" in await made.run(read, "key")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "missing: query"),
        ({"query": "x", "other": 1}, "unknown: other"),
        ({"query": 3}, "argument query of search"),
        ({"query": "x", "limit": "many"}, "argument limit of search"),
    ],
)
def test_wrong_arguments_are_refused_in_words_for_a_model(
    arguments: dict[str, Any], problem: str
) -> None:
    def search(query: str, limit: int = 3) -> str:
        return query

    with pytest.raises(UsageError, match=problem):
        read_tool(search).read(arguments)


@pytest.mark.parametrize("arguments", ['{"amount": 1}', None, ["a"]])
def test_a_call_whose_arguments_are_no_mapping_is_refused(arguments: Any) -> None:
    with pytest.raises(UsageError, match=r"arguments of the tool call 'pay' are .*json.loads"):
        ToolCall("call-1", "pay", arguments)


def test_a_function_says_whether_it_may_be_called_again() -> None:
    @tool
    def undeclared() -> None: ...

    @tool(read_only=True)
    def reading() -> None: ...

    @tool(idempotent=True, name="again-and-again", approval=True, checkpoint_before=True)
    def again() -> None: ...

    def bare() -> None: ...

    policies = [read_tool(each).in_doubt for each in (undeclared, reading, again, bare)]
    assert policies == ["ask", "retry", "retry", "ask"]
    made = read_tool(again)
    assert (made.name, made.approval, made.checkpoint_before) == ("again-and-again", True, True)
    assert read_tool(made) is made


async def test_the_idempotency_key_is_given_and_not_shown() -> None:
    async def send(text: str, idempotency_key: str) -> str:
        return f"{text} {idempotency_key}"

    made = read_tool(send)
    assert [*made.parameters["properties"]] == ["text"]
    assert await made.run({"text": "x"}, "key-1") == "x key-1"


async def test_a_plain_function_does_not_block_the_loop() -> None:
    import threading

    def where() -> str:
        return threading.current_thread().name

    assert await read_tool(where).run({}, "") != threading.current_thread().name


def test_what_is_no_tool_is_refused() -> None:
    def many(*things: int) -> None: ...

    def strange(value: threading_lock) -> None: ...  # type: ignore[valid-type]  # noqa: F821

    with pytest.raises(UsageError, match="a tool is a function"):
        read_tool("search")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give each argument a name"):
        read_tool(many)
    with pytest.raises(UsageError, match="is not a name for a tool"):
        read_tool(lambda x: x)
    with pytest.raises(NameError):
        read_tool(strange)


def test_a_type_without_a_schema_is_refused() -> None:
    class Odd:
        pass

    def strange(value: Any) -> None: ...

    strange.__annotations__["value"] = Odd
    with pytest.raises(UsageError, match="has no JSON schema"):
        read_tool(strange)


@pytest.mark.parametrize(
    ("result", "text"),
    [("words", "words"), ({"a": [1, None]}, '{"a":[1,null]}'), (3, "3"), (None, "null")],
)
def test_results_are_text_for_a_model(result: Any, text: str) -> None:
    assert text_of(result) == text


class Task(Signature):
    """Solve it."""

    question: str = InputField("what is asked")
    answer: str = OutputField("in a word")
    sources: list[str] = OutputField()


class Nested(msgspec.Struct):
    place: str
    people: list[str]


def test_a_signature_says_what_goes_in_and_what_comes_out() -> None:
    made = read_signature(Task())
    assert made is not None
    assert made.instructions == "Solve it.\nThe task gives:\nquestion: what is asked"
    assert made.schema["properties"]["answer"] == {"type": "string", "description": "in a word"}
    assert made.schema["required"] == ["answer", "sources"]
    assert made.read({"answer": "a", "sources": []}) == {"answer": "a", "sources": []}
    with pytest.raises(UsageError, match="does not fit"):
        made.read({"answer": "a"})
    with pytest.raises(UsageError, match="does not fit"):
        made.read(None)


@pytest.mark.parametrize("cls", [Place, Person, Nested])
def test_every_kind_of_signature_has_a_schema_of_an_object(cls: type) -> None:
    made = read_signature(cls)
    assert made is not None
    Draft202012Validator.check_schema(made.schema)
    assert made.schema["type"] == "object" and "$ref" not in made.schema


def test_a_signature_without_outputs_is_refused() -> None:
    class Empty(Signature):
        question: str = InputField()

    with pytest.raises(UsageError, match="has no output"):
        read_signature(Empty)
    assert read_signature(None) is None
