"""Sources and sinks: one outside system per module, none knows another, and none is imported unless it is asked for."""
