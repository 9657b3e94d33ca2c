"""The parts that users write: spouts, bolts, streams, groupings and the builder; and what all layers
share, such as pickling and redaction. Needs the standard library and cloudpickle, for columns also
pyarrow."""
