"""Sources and sinks: one folder per outside system, with its spouts and its sink, from which users
import. No connector imports another, and each is imported on demand.
"""
