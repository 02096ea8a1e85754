"""The engine: states to records, records to states, and the runs held open."""
