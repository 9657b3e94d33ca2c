"""Topologies that are wrong on purpose, each by one classic mistake, each with its corrected twin.

All of them work as long as nothing fails. ``txtopo test starter/wrong/unconditional_increment.py``
finds the failure that shows the mistake; ``txtopo test
starter/wrong/unconditional_increment.py:corrected`` finds none.
"""
