"""The data plane on Spark, and the engine that turns the coordinator's commands into jobs and writes. The only package that uses pyspark."""
