"""Mutations of the source, each of which must turn a test red: what shows that the tests would
notice."""
