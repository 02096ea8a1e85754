from surehold.cli.console import repl as repl
