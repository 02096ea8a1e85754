"""Every error Surehold raises, in one tree.

```
SureholdError                 facts as attributes, a message, a hint, the cause
  UsageError                  your call is wrong: change the code
    MissingExtraError         an optional package is not installed
  NotFoundError               no such run, checkpoint or storage        (also LookupError)
  ConflictError               someone wrote first: reload, decide again
    LeaseHeldError            a live process holds the run
    DivergedError             the copies of a run have gone different ways
  StorageError                the medium failed; `.retryable` says whether trying again may help
    StorageFullError          no room left
    StorageUnavailableError   it cannot be reached or is busy
  DataError                   the bytes are wrong; never retried
    CorruptError              a digest, a chain or a frame does not fit
    EncodeError               a value cannot be stored
    DecodeError               stored text cannot be turned back into values
    SchemaError               a state of a version this code does not know
    WrongKeyError             the encryption key is missing or another one
  ShapeError                  the code no longer fits the journal
  VetoError                   a hook refused the save
  RunError                    user code failed inside a run
    StepError                 which node, with the last good state
    BudgetError               a limit was reached
    DriftError                a run went wrong in its own eyes, and is to be stopped then
    InDoubtError              an effect began and its outcome is not known
Signal (BaseException)        not failures: `except Exception` must not eat them
  Interrupted                 the run waits for a person
  Drained                     asked to stop; the state is saved
Cancelled (BaseException)     asked to end: cleanup follows, and is recorded
```

Every error carries its facts as attributes (`error.run_id`, `error.seq`, ...) and a hint that
says what to do next:

>>> try:
...     raise NotFoundError("no run 'nightly'", hint="surehold runs lists them", run_id="nightly")
... except SureholdError as error:
...     print(error, "|", error.run_id)
no run 'nightly' (surehold runs lists them) | nightly
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BudgetError",
    "Cancelled",
    "ConflictError",
    "CorruptError",
    "DataError",
    "DecodeError",
    "DivergedError",
    "Drained",
    "DriftError",
    "EncodeError",
    "InDoubtError",
    "Interrupted",
    "LeaseHeldError",
    "MissingExtraError",
    "NotFoundError",
    "RunError",
    "SchemaError",
    "ShapeError",
    "Signal",
    "StepError",
    "StorageError",
    "StorageFullError",
    "StorageUnavailableError",
    "SureholdError",
    "UsageError",
    "VetoError",
    "WrongKeyError",
]


class SureholdError(Exception):
    """The root of everything Surehold raises on purpose."""

    hint: str = ""
    facts: dict[str, Any]

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or type(self).hint
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} carries no fact {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.facts)


def _rebuild(
    kind: type[SureholdError], message: str, hint: str, facts: dict[str, Any]
) -> SureholdError:
    return kind(message, hint=hint, **facts)


class UsageError(SureholdError):
    """The call itself is wrong; change the code."""


class MissingExtraError(UsageError, ImportError):
    """An optional package is needed and not installed."""


class NotFoundError(SureholdError, LookupError):
    """There is no such run, checkpoint or storage."""


class ConflictError(SureholdError):
    """Someone else wrote to the run first."""

    hint = "load the run again and decide anew"


class LeaseHeldError(ConflictError):
    """A live process holds the run; `.owner` says who, `.until` how long."""

    hint = "wait for it to end, or stop that process"


class DivergedError(ConflictError):
    """The copies of a run have diverged; `.storages` names two that disagree."""

    hint = "call keep_copy(run_id, keep=...) of the storage to choose the copy that counts"


class StorageError(SureholdError):
    """The medium failed and acknowledged nothing; `.retryable` says to try again."""

    retryable: bool = False


class StorageFullError(StorageError):
    """The medium has no room left."""

    hint = "free some space, then save again: nothing acknowledged was lost"


class StorageUnavailableError(StorageError):
    """The medium cannot be reached, or is busy."""

    retryable = True


class DataError(SureholdError):
    """The bytes are wrong. Trying again does not help."""


class CorruptError(DataError):
    """A stored record is damaged, missing or out of place."""

    hint = (
        "verify() lists the damage, repair() puts it aside; on_corrupt='fallback' resumes"
        " from the last good checkpoint"
    )


class EncodeError(DataError):
    """A value cannot be stored; `.path` names it. Nothing was written."""

    path: str = ""

    def within(self, where: str, **facts: Any) -> EncodeError:
        """The same error, which says *where* the value is."""
        return EncodeError(
            f"{where}: {self.message}", hint=self.hint, **{**self.facts, "path": self.path, **facts}
        )


class DecodeError(DataError):
    """Stored text cannot be turned back into values."""


class SchemaError(DataError):
    """The state has a version that this code cannot read."""


class WrongKeyError(DataError):
    """The encryption key is missing or is not the one the run was saved with."""


class ShapeError(SureholdError):
    """The code no longer fits the journal."""


class VetoError(SureholdError):
    """A hook refused the save."""


class RunError(SureholdError):
    """User code failed inside a run."""


class StepError(RunError):
    """A step failed; `.node`, `.state` (the last good one) and `.path` say where."""


class BudgetError(RunError):
    """A limit was reached."""


class DriftError(RunError):
    """Drift was found, and the policy is to stop; `.report` says what was seen."""

    hint = "the state at this point is saved; find the cause before you resume"


class InDoubtError(RunError):
    """An effect began and its outcome is not known."""


class Signal(BaseException):
    """Not a failure: a BaseException, so that `except Exception` lets it pass."""

    def __init__(self, message: str = "", *, hint: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} carries no fact {name!r}")


class Cancelled(BaseException):
    """The run was asked to end; calls that follow are recorded, as its cleanup.

    It is raised once, and is a `BaseException`, so that ``except Exception`` lets it pass.
    """

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class Interrupted(Signal):
    """The run waits for an answer from outside; `.waiting` says for which."""


class Drained(Signal):
    """The run was asked to stop, and its state is saved."""
