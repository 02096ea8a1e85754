from surehold.cli.commands.keep.forget import plan_forget as plan_forget
from surehold.cli.commands.keep.verify import Verify as Verify
