"""The parts that users write: spouts, bolts, streams, groupings and the builder. Imports nothing
but the standard library and cloudpickle."""
