from holdfast.cli.commands.see.diff import Diff as Diff
from holdfast.cli.commands.see.diff import read_diff as read_diff
from holdfast.cli.commands.see.log import Log as Log
from holdfast.cli.commands.see.log import read_log as read_log
from holdfast.cli.commands.see.log import with_settled as with_settled
from holdfast.cli.commands.see.runs import RunList as RunList
from holdfast.cli.commands.see.runs import read_shown_status as read_shown_status
from holdfast.cli.commands.see.show import read_checkpoint as read_checkpoint
