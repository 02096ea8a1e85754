from holdfast.cli.commands.act.fork import fork_from as fork_from
from holdfast.cli.commands.act.pending import Pending as Pending
from holdfast.cli.commands.act.queue import QueueList as QueueList
from holdfast.cli.commands.act.queue import WorkerList as WorkerList
from holdfast.cli.commands.act.resume import rewind_text as rewind_text
