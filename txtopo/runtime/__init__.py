"""Objects that users hold: a cluster, a run, and the visible transactions of a topology."""
