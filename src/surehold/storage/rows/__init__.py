"""The parts of a SQL medium that do not depend on its dialect.

A table of keys, (key, note, ord), finds the records: `record_keys` are the keys of a record,
`query_keys` those that a query asks for, the rarest first. `open_row`, `record_of`, `head_of_row`
read rows back and believe none that does not fit. Statements belong to each medium: see
`sqlite.index` for a listing by these keys.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
