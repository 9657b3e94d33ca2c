"""Sources and sinks. Each outside system has a folder with its spouts and its sink, and users import
from the folder. No connector imports another connector, and each is imported on demand.
"""
