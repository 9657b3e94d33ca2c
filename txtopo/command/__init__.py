"""The command line: commands, options, output and exit codes."""
