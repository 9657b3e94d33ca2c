"""Compiles graphs to plans: the components in each level and phase. Pure: no Spark, no clock, no
I/O."""
