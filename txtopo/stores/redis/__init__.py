"""The store in a Redis server."""
