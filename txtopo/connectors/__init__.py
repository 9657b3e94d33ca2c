"""Sources and sinks. Each outside system has a folder with its spouts and its sink, and users import
from the folder. No connector imports another connector, except that ``delta`` writes through
``files``. Each imports its client library on demand. The modules beside the folders are for all
connectors.
"""
