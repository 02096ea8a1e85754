"""The records of a run that is read whole while other processes save and prune it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from surehold.core.records import Chain, Record, gaps_between, read_prune_note
from surehold.engine.journal import Reader
from surehold.storage.base import Batch, RecordQuery, RunInfo, Storage, in_batches


class Source:
    """The records of a run after a seq, with counts of those already read.

    They end with the head *run*. If records were erased before they were read, they end with a
    newer head, which includes the note that names the erased records.
    """

    def __init__(self, reader: Reader, run: RunInfo, *, after: int = 0) -> None:
        self._reader = reader
        self._run = run
        self._after = after
        self._seqs: list[int] = []
        self._checkpoints: list[int] = []
        self.encrypted = False
        self.visible: set[int] = set()
        self._look()

    @property
    def first(self) -> int:
        """The seq of the first record read."""
        return self._seqs[0]

    @property
    def hidden(self) -> list[int]:
        """The seqs of those read that are kept as bases only."""
        return [seq for seq in self._seqs if seq not in self.visible]

    @property
    def checkpoints(self) -> int:
        """The number of visible checkpoints read."""
        return sum(seq in self.visible for seq in self._checkpoints)

    def copy_to(self, storage: Storage, records: Iterable[Record] | None = None) -> int:
        """Append the records to *storage*, and return their number.

        *records* replaces the run's records, say with encrypted ones; a note may follow them.
        """
        seq, copied, visible = self._after, 0, self.visible
        for some in in_batches(self if records is None else records):
            seqs = [record.header.seq for record in some]
            batch = Batch(
                run_id=self._run.run_id,
                records=tuple(some),
                hide=tuple(
                    one for one in seqs if one <= self._seqs[-1] and one not in self.visible
                ),
                erased=frozenset(gaps_between(seqs, after=seq)),
            )
            conflict = storage.append([batch])[0]
            if conflict is not None:
                raise conflict
            seq = seqs[-1]
            copied += len(some)
        if visible is not self.visible:  # a prune came in between, and what it hid may be copied
            storage.delete(self._run.run_id, hide=self.hidden)
        return copied

    def __iter__(self) -> Iterator[Record]:
        chain = Chain(self._after)
        announced: dict[int, str] = {}
        first, last = self._after + 1, self._run.seq
        while True:
            for record in self._reader.records(self._run.run_id, first, last):
                header = record.header
                chain.add(header)
                self._seqs.append(header.seq)
                if header.frame != "note":
                    self._checkpoints.append(header.seq)
                elif header.kind == "prune":
                    announced |= {gap.last: gap.digest for gap in read_prune_note(record.body)}
                yield record
            if chain.seq == last and not chain.unexplained(announced):
                return
            run = self._reader.run(self._run.run_id)
            if run is None or run.seq == last:
                return
            first, last = last + 1, run.seq
            self._look()

    def _look(self) -> None:
        query = RecordQuery(run_id=self._run.run_id, notes=True)
        self.visible = set()
        for header in self._reader.storage.headers(query):
            self.visible.add(header.seq)
            self.encrypted = self.encrypted or (header.frame, header.kind) == ("note", "key")
