"""The parts that all sinks share, whichever system they write to."""
