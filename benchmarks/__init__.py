"""What Holdfast costs, measured beside bare commits and other libraries: `make bench`.

Every figure is a ratio inside one run, so that it means the same on another machine; what is
compared takes turns, so that a slow moment of the disk hits both. `python -m benchmarks speed`
runs one of them alone. The files go to the system's temporary directory (TMPDIR).
"""
