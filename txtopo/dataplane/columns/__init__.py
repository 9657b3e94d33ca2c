"""RecordBatches inside a task: as bytes and rows, by grouping, into lanes, and into bolts. Loaded
by ``column_runs`` where columns are met, because all but ``task`` imports pyarrow."""
