"""Costs of txtopo, measured beside those of its foundations and peers: ``python -m bench``.

A *line* is one row of the report. It races *contenders*, each in a process of its own, in turns (A
B A B …), checks that all of them counted right, and gives ratios. Absolute figures belong to the
machine; ratios are the result.
"""
