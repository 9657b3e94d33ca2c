"""The engine on Spark: jobs, tasks, the session and its settings. The only package that uses
pyspark."""
