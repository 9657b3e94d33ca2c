"""The engine: the loop that turns the commands of the coordinator into jobs and writes. Knows
neither Spark nor ZooKeeper."""
