"""The engine on Spark: jobs, tasks, the session and its settings. No other package uses pyspark."""
