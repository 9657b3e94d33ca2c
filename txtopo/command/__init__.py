"""The command line: each command, its options, its output and its exit code."""
