"""The lines of the report: who races whom, and which ratios come of it."""
