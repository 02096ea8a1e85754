from holdfast.cli.commands.start.completion import candidates as candidates
