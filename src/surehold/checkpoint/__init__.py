"""The engine: what turns states into records and records into states."""
