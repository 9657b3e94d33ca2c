"""From graph to plan: which component runs in which level of which phase. Pure: no Spark, no clock,
no I/O."""
