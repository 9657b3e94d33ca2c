"""RecordBatches inside a task: as bytes and rows, by grouping, into lanes, and into bolts.
``column_runs`` loads the modules when a worker meets columns, because all except ``task`` import
pyarrow."""
