from holdfast.cli.commands.keep.forget import chosen_runs as chosen_runs
