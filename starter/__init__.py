"""Topologies to start from; each file runs by itself. See starter/README.md."""
