"""Workloads that run while processes die, and checkers of their promises, in the manner of Jepsen.

``workloads`` the programs: input as a function of the seed, a topology, and the results that a
reader may see ``driver`` the process that runs the topologies, and that nemeses kill ``nemeses``
the strikes against drivers, workers, executors and ZooKeeper ``trial`` one run of all of them
together, from one seed; ``report`` prints the outcome ``matrix`` the trials of ``make fault``;
``python -m tests.soak`` without it is ``make soak``

A workload's results are judged only by its input and by the reads of an outside reader: neither
txtopo's own state nor its own counters decide whether an answer is right.
"""
