from surehold.cli.commands.act.fork import fork_from as fork_from
from surehold.cli.commands.act.pending import Pending as Pending
from surehold.cli.commands.act.queue import QueueList as QueueList
from surehold.cli.commands.act.queue import WorkerList as WorkerList
from surehold.cli.commands.act.resume import rewind_text as rewind_text
