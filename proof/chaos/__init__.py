"""Workers over PostgreSQL under faults, judged by what their steps told a file outside.

No process reads that file but the judge. The form is ``proof/chaos/trial.py``; it is run by
``tests/e2e/servers/test_chaos.py``, and whole by ``python -m proof chaos``.
"""
