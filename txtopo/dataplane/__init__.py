"""The data plane runs inside a task: emit, route, execute, hold, commit. It does not know Spark,
and needs only the standard library and cloudpickle, for columns also pyarrow."""
