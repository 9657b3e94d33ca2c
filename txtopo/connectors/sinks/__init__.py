"""Sinks: committers that write to systems outside of txtopo, exactly once."""
