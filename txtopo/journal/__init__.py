"""The journal: one record per attempt, in bounded files, to look at a run later.

The journal is evidence, never authority: ZooKeeper says which transactions are committed. A missing
record shows as a hole.
"""
