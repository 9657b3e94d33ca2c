"""The engine: a loop turns the coordinator's commands into jobs and writes. It knows neither Spark
nor ZooKeeper."""
