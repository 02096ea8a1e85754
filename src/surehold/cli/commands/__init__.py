"""The commands of `surehold`, a room for each group of `surehold --help`."""
