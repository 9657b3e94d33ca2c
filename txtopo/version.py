"""The versions of this package, and of what it prints as JSON."""

VERSION = "0.1.0"

SCHEMA_VERSION = 1
"""Of the documents that ``--json`` and the page give. Goes up when a field goes or changes."""
