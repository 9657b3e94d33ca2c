"""The inside of a task: emit, route, execute, hold, commit. Knows nothing of Spark; needs the
standard library and cloudpickle only."""
