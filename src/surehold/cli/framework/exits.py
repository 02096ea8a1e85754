"""Exit codes of errors, and the command that helps with each.

==== ==============================================================
0    done
1    failed
2    the command line is wrong
3    done in part
4    no such run or checkpoint
5    another process wrote first, or holds the run
6    it needs a confirmation that was not given
7    stored bytes are damaged
8    the code no longer fits the journal
9    a limit was reached
10   no such storage
11   the storage is locked or cannot be reached
12   the encryption key is missing or another one
20   the run is waiting: it needs a person
130  interrupted
141  the reader of the output stopped reading
==== ==============================================================
"""

from __future__ import annotations

import os
from typing import IO

from surehold import errors

FAILED, USAGE, PARTIAL, NOT_FOUND, CONFIRM, DAMAGED, LIMIT, WAITING = 1, 2, 3, 4, 6, 7, 9, 20
NO_LONGER_FITS = 8
NO_STORAGE = 10
INTERRUPTED = 130
PIPE_CLOSED = 141


class ConfirmationError(errors.UsageError):
    """The command needs a confirmation that was not given."""


_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (ConfirmationError, CONFIRM),
    (errors.MissingExtraError, FAILED),
    (errors.UsageError, USAGE),
    (errors.NotFoundError, NOT_FOUND),
    (errors.ConflictError, 5),
    (errors.StorageUnavailableError, 11),
    (errors.WrongKeyError, 12),
    (errors.SchemaError, NO_LONGER_FITS),
    (errors.ShapeError, NO_LONGER_FITS),
    (errors.DataError, DAMAGED),
    (errors.BudgetError, LIMIT),
    (errors.InDoubtError, WAITING),
    (errors.Interrupted, WAITING),
    (errors.Drained, INTERRUPTED),
)


def let_go(stream: IO[str]) -> None:
    """Point *stream* at nothing after its reader stopped, so that it closes well."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def code_of(error: BaseException) -> int:
    """The exit code of a command that ends with *error*."""
    if isinstance(error, errors.NotFoundError) and {"storage", "scheme"} & error.facts.keys():
        return NO_STORAGE
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def help_for(error: errors.SureholdError) -> str:
    """The command that helps, or the hint of the error itself."""
    match error:
        case errors.CorruptError() if error.hint == errors.CorruptError.hint:
            return "surehold verify --read-data lists the damage, surehold repair repairs it"
        case errors.WrongKeyError() if "surehold " not in error.hint:
            return "set SUREHOLD_ENCRYPTION_KEY or SUREHOLD_ENCRYPTION_KEY_FILE to its key"
        case errors.StorageFullError():
            return "surehold forget and surehold prune free space; nothing acknowledged was lost"
        case errors.LeaseHeldError():
            return f"wait for it, or follow it: surehold watch {error.facts.get('run_id', 'RUN')}"
        case errors.StorageUnavailableError():
            return error.hint or "try again in a moment; surehold doctor says what is in use"
        case errors.ShapeError() if "force=True" in error.hint:
            return "--force resumes all the same; else raise the graph's version and migrate"
        case errors.NotFoundError() if "checkpoint_id" in error.facts:
            return "surehold log RUN lists the checkpoints there are"
        case errors.NotFoundError() if error.hint == "check the spelling":
            return "surehold runs lists them"
        case errors.ConflictError() if error.hint == errors.ConflictError.hint:
            return "look again, then repeat the command"
    return error.hint
