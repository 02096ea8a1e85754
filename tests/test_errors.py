"""One tree of errors, each with its facts and with what to do."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from typing import Any

import pytest

from surehold import errors
from surehold.errors import (
    ConflictError,
    CorruptError,
    DataError,
    EncodeError,
    LeaseHeldError,
    MissingExtraError,
    NotFoundError,
    Signal,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    SureholdError,
    UsageError,
)

CLASSES = [getattr(errors, name) for name in errors.__all__]
FAILURES = [cls for cls in CLASSES if issubclass(cls, SureholdError)]
SIGNALS = [cls for cls in CLASSES if issubclass(cls, Signal)]


def documented_tree() -> dict[str, str]:
    """Each class and its parent, as the module's own drawing has them."""
    drawing = (errors.__doc__ or "").split("```")[1]
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = [(-1, "")]
    for line in drawing.splitlines():
        found = re.match(r"( *)(\w+)", line)
        if not found:
            continue
        depth, name = len(found[1]), found[2]
        while above[-1][0] >= depth:
            above.pop()
        parents[name] = above[-1][1]
        above.append((depth, name))
    return parents


def test_the_tree_is_the_one_that_is_documented() -> None:
    tree = documented_tree()
    assert {*tree} == {*errors.__all__}
    for name, parent in tree.items():
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        assert bases[0] == (parent or {"SureholdError": "Exception"}.get(name, "BaseException"))


def test_every_class_of_the_module_is_public_and_says_what_it_means() -> None:
    defined = {
        name
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if cls.__module__ == errors.__name__
    }
    assert defined == {*errors.__all__}
    assert [*errors.__all__] == sorted(errors.__all__)
    assert all(cls.__doc__ for cls in CLASSES)


def test_an_error_carries_its_facts_its_message_and_a_hint() -> None:
    for cls in FAILURES:
        error = cls("it broke", hint="fix it", run_id="r", seq=5)
        assert str(error) == "it broke (fix it)"
        assert (error.message, error.hint) == ("it broke", "fix it")
        assert (error.run_id, error.seq) == ("r", 5)
        assert error.facts == {"run_id": "r", "seq": 5}
        assert error.args == ("it broke",)


def test_an_error_without_a_hint_takes_that_of_its_class() -> None:
    for cls in FAILURES:
        error = cls("it broke")
        assert error.hint == cls.hint
        assert str(error) == (f"it broke ({cls.hint})" if cls.hint else "it broke")


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_an_error_survives_copying_and_pickling(copied: Any) -> None:
    for cls in FAILURES:
        error = cls("it broke", hint="fix it", run_id="r", retryable=True)
        back = copied(error)
        assert type(back) is cls
        assert (str(back), back.facts, back.run_id) == (str(error), error.facts, "r")
        assert back.args == error.args and back.retryable is True


def test_a_fact_that_was_not_given_is_named() -> None:
    with pytest.raises(AttributeError, match="UsageError carries no fact 'seq'"):
        UsageError("x", run_id="r").seq  # noqa: B018
    assert not hasattr(UsageError("x"), "run_id")


def test_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(NotFoundError, LookupError)
    assert issubclass(MissingExtraError, ImportError)
    assert issubclass(LeaseHeldError, ConflictError)
    assert issubclass(CorruptError, DataError)
    assert not issubclass(NotFoundError, KeyError), "its text would be quoted"


def test_whether_to_try_again_is_a_property_of_the_error() -> None:
    assert StorageUnavailableError("x").retryable is True
    assert StorageFullError("x").retryable is False
    assert StorageError("x").retryable is False
    assert StorageError("x", retryable=True).retryable is True


def test_an_encode_error_always_has_a_path() -> None:
    assert EncodeError("x").path == ""
    assert EncodeError("x", path="a.b").path == "a.b"


@pytest.mark.parametrize("cls", SIGNALS)
def test_a_signal_is_no_exception_that_code_may_swallow(cls: type[BaseException]) -> None:
    assert not issubclass(cls, Exception)
    assert not issubclass(cls, SureholdError)


def test_catching_the_root_catches_every_failure() -> None:
    for cls in FAILURES:
        with pytest.raises(SureholdError):
            raise cls("x")


def test_the_cause_is_kept() -> None:
    with pytest.raises(CorruptError) as caught:
        try:
            raise ValueError("inner")
        except ValueError as error:
            raise CorruptError("outer") from error
    assert isinstance(caught.value.__cause__, ValueError)
