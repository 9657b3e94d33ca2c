"""Sources and sinks: one folder per outside system. No connector imports another, and each is
imported on demand."""
