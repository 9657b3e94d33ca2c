"""Versions: this package's, and that of its JSON documents."""

VERSION = "0.1.0"

SCHEMA_VERSION = 1
"""Of the documents that ``--json`` and the page give. Goes up when a field goes or changes."""
