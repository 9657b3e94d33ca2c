"""The earlier name of ``txtopo.spark.daemon``, for clusters whose settings name it as
``spark.python.daemon.module``."""

from __future__ import annotations

from txtopo.spark import daemon

if __name__ == "__main__":
    daemon.main()
