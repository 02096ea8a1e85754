"""The `holdfast` command; each module has a few commands: parse, call, show."""
