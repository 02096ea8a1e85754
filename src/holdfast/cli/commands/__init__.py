"""The commands of `holdfast`, a room for each group of `holdfast --help`."""
