"""The `surehold` command; each module has a few commands: parse, call, show."""
