from surehold.testing.selftest.scratch import Scratch as Scratch
from surehold.testing.selftest.scratch import scratch_in as scratch_in
from surehold.testing.selftest.verdicts import Failed as Failed
from surehold.testing.selftest.verdicts import Skipped as Skipped
from surehold.testing.selftest.verdicts import Verdicts as Verdicts
from surehold.testing.selftest.verdicts import killed_after as killed_after
from surehold.testing.selftest.verdicts import require as require
