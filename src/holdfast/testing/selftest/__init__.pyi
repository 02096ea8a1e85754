from holdfast.testing.selftest.scratch import Scratch as Scratch
from holdfast.testing.selftest.scratch import scratch_in as scratch_in
from holdfast.testing.selftest.verdicts import Failed as Failed
from holdfast.testing.selftest.verdicts import Skipped as Skipped
from holdfast.testing.selftest.verdicts import Verdicts as Verdicts
from holdfast.testing.selftest.verdicts import killed_after as killed_after
from holdfast.testing.selftest.verdicts import require as require
