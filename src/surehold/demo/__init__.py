"""The demonstration: a job that is killed and resumed, and the runs it leaves.

`surehold demo` and the page of an empty storage both make them.
"""
