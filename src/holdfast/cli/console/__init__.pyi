from holdfast.cli.console import repl as repl
