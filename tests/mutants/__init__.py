"""Mutations of the source, each of which must turn a test red: the proof that the tests would
notice."""
