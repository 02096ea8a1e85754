"""Names of keys: those of a run share its hash tag, those of the indexes another.

A run's keys, all behind ``PREFIX:run:{RUN}:``:

- ``head``: a hash, the head entry of the run
- ``lease``: a hash, the newest lease; it outlives the run
- ``headers``, ``bodies``, ``meta``: hashes by seq; `meta` is what the scripts know of a record
- ``c``, ``x``, ``n``: sorted sets of the visible seqs: checkpoints of the run itself, nested
  checkpoints, notes
- ``erased``: a sorted set of ranges ``FIRST-LAST``
- ``quarantine:TIME``: a hash, what a repair has set aside

The indexes, all behind ``PREFIX:index:{PREFIX}:``, are sorted sets of runs by ordinal (``runs…``,
``open…``) and of records ``SEQ:RUN`` by place (``c``, ``n``, ``f:KEY``, ``g:KEY``); ``ids`` is
sorted by id; ``ordinals`` counts the runs that ever began; ``format`` is the number of this layout.
Queues are behind ``PREFIX:queue:{PREFIX}:``; see `surehold.storage.redis.queue`.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from surehold.core.records import Header
from surehold.errors import UsageError
from surehold.storage.base import RunQuery
from surehold.storage.shared import to_bytes, to_text

_DONE = b"completed"


class KeyNames:
    """The names of the keys below one prefix.

    >>> KeyNames("surehold").run("nightly")
    b'surehold:run:{nightly}:'
    """

    def __init__(self, prefix: str) -> None:
        if not prefix.strip() or any(mark in prefix for mark in "{}*?[]\\"):
            raise UsageError(
                f"prefix is {prefix!r}", hint="give a name without any of { } * ? [ ] \\"
            )
        self._runs = to_bytes(prefix) + b":run:{"
        self.index = to_bytes(prefix) + b":index:{" + to_bytes(prefix) + b"}:"
        self.queue = to_bytes(prefix) + b":queue:{" + to_bytes(prefix) + b"}:"

    def of_all(self, part: bytes) -> bytes:
        """The pattern of the keys of all runs that are called so."""
        return self._runs + b"*}:" + part

    def run(self, run_id: str) -> bytes:
        """The beginning of every key of a run, with its hash tag.

        A brace would end the tag, so it is escaped.
        """
        data = to_bytes(run_id)
        for mark in (b"%", b"{", b"}"):
            data = data.replace(mark, b"%%%02X" % mark[0])
        return self._runs + data + b"}:"

    def run_of(self, key: bytes, part: bytes) -> str:
        """The id of the run whose key, called *part*, this is."""
        return to_text(unquote_to_bytes(key[len(self._runs) : -len(part) - 2]))

    def runs_wanted(self, query: RunQuery) -> bytes:
        """The shortest list of runs that holds all that *query* wants, and perhaps more."""
        name = None if query.name is None else to_bytes(query.name)
        if query.status is not None:
            key = b"runs:s:" if name is None else b"runs:ns:"
            return (
                self.index
                + key
                + netstrings([name or b""] * (name is not None))
                + to_bytes(query.status)
            )
        unfinished = query.open or query.not_status == _DONE.decode()
        kind = b"open" if unfinished else b"runs"
        return self.index + kind + (b"" if name is None else b":n:" + name)


def member_of(member: bytes) -> tuple[int, str]:
    """The seq and the run id of a record in an index."""
    seq, _, run = member.partition(b":")
    return int(seq), to_text(run)


def netstrings(parts: Iterable[bytes]) -> bytes:
    """Byte strings one after another, each behind its length.

    >>> netstrings([b"ab", b""])
    b'2:ab0:'
    """
    return b"".join(b"%d:%s" % (len(part), part) for part in parts)


def zone_of(header: Header) -> bytes:
    """The list of its run that a visible record is in."""
    if header.frame == "note":
        return b"n"
    return b"x" if header.scope else b"c"
