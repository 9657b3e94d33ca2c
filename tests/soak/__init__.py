"""Workloads that run while things die, and checkers that say what must hold all the same, in the
manner of Jepsen.

``workloads``  what is run: its input as a function of the seed, its topology, and what a reader may
see of its results ``driver``     the process that runs the topologies, and that nemeses kill
``nemeses``    what is done to it, its workers, its executors and its ZooKeeper ``trial``      one
run of all of them together, from one seed; ``report`` says how it went ``matrix``     the trials of
``make fault``; ``python -m tests.soak`` without it is ``make soak``

A workload's results are judged only by what it was fed and by what a reader outside sees: neither
txtopo's own state nor its own counters say whether an answer is right.
"""
