"""Workloads that run while processes die, and checkers of their promises, in the manner of Jepsen.

``workloads``  topologies, their input as a function of the seed, and the results a reader may see
``driver``     the process that runs the topologies, and that nemeses kill
``nemeses``    the faults of the driver, its workers, its executors and its ZooKeeper
``trial``      one run of all of them together, from one seed; ``report`` tells the outcome
``matrix``     the trials of ``make thorough``; ``python -m tests.soak`` without it is ``make soak``

A workload's results are judged only by its input and by the reads of an outside reader: neither
txtopo's own state nor its own counters decide whether an answer is right.
"""
