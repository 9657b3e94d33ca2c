"""Sources and sinks: one folder per outside system. No connector imports another, and each is
imported on demand.

A system that is read and written, such as Kafka, has one folder for its spouts and its sink, and
users import both from there (``txtopo.connectors.kafka``). ``sinks`` has a folder for each kind of
system that is only written to, and users import from a public module beside (``connectors.sql``).
"""
