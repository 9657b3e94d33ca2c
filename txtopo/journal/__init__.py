"""The journal: one record per attempt in bounded files, which tell afterwards what a run did.

The journal is evidence, never authority: ZooKeeper says which transactions are committed. A missing
record shows as a hole.
"""
