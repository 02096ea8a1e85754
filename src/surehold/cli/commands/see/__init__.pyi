from surehold.cli.commands.see.diff import Diff as Diff
from surehold.cli.commands.see.diff import read_diff as read_diff
from surehold.cli.commands.see.log import Log as Log
from surehold.cli.commands.see.log import read_log as read_log
from surehold.cli.commands.see.log import with_settled as with_settled
from surehold.cli.commands.see.runs import RunList as RunList
from surehold.cli.commands.see.runs import read_shown_status as read_shown_status
from surehold.cli.commands.see.show import read_checkpoint as read_checkpoint
