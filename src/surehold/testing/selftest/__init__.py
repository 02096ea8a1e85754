"""The program behind `surehold selftest`: kills, damage, a full disk.

Checks that need only pytest and no real place belong into `testing/contract`.
"""

from __future__ import annotations

from surehold.testing.selftest.promises import check_storage as check_storage
from surehold.testing.selftest.shipped import check_contract as check_contract
from surehold.testing.selftest.verdicts import PromiseVerdict as PromiseVerdict
