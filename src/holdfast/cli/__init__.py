"""The `holdfast` command. Each module is a few commands: parse, call the engine, show."""
