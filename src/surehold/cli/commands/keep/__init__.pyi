from surehold.cli.commands.keep.verify import Verify as Verify
