"""The parts of a SQL medium that do not depend on its dialect.

A table of keys, (key, note, ord), finds the records: `record_keys` are the keys of a record,
`query_keys` those that a query asks for, the rarest first. `open_row`, `record_of`, `head_of_row`
read rows back and believe none that does not fit. Statements belong to each medium: see
`sqlite.index` for a listing by these keys.
"""

from __future__ import annotations

from surehold.storage.rows.conditions import conditions_of_runs as conditions_of_runs
from surehold.storage.rows.conditions import conditions_of_times as conditions_of_times
from surehold.storage.rows.keys import HIDDEN as HIDDEN
from surehold.storage.rows.keys import MOST_NOTES as MOST_NOTES
from surehold.storage.rows.keys import NESTED as NESTED
from surehold.storage.rows.keys import NOTE as NOTE
from surehold.storage.rows.keys import id_key as id_key
from surehold.storage.rows.keys import id_range as id_range
from surehold.storage.rows.keys import kind_key as kind_key
from surehold.storage.rows.keys import micros as micros
from surehold.storage.rows.keys import query_keys as query_keys
from surehold.storage.rows.keys import record_keys as record_keys
from surehold.storage.rows.keys import scope_key as scope_key
from surehold.storage.rows.keys import state_of as state_of
from surehold.storage.rows.rows import Listing as Listing
from surehold.storage.rows.rows import head_of_row as head_of_row
from surehold.storage.rows.rows import open_row as open_row
from surehold.storage.rows.rows import record_of as record_of
