"""From graph to plan: the components in each level of each phase. Pure: no Spark, no clock, no
I/O."""
