"""The parts common to stores in PostgreSQL and in MySQL."""
