"""Measures what Surehold costs beside bare commits and other libraries: `make bench`.

Every figure is a ratio within one run, so it means the same on another machine. The things
compared take turns, so a slow moment of the disk affects both. `python -m benchmarks speed` runs
one section. The files go to the system's temporary directory (TMPDIR).
"""
