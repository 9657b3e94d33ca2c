"""The parts that stores in PostgreSQL and in MySQL share."""
