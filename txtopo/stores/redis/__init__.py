"""Stores in Redis."""
