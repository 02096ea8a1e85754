from holdfast.cli.commands.start.completion import candidates as candidates
from holdfast.cli.commands.start.documents import Demo as Demo
