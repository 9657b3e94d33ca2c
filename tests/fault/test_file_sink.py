"""The sink for files while its storage goes away (R28)."""

from __future__ import annotations

import pytest

from tests.servers.hdfs import HdfsServer
from tests.topologies.file_sinks import ROWS, Writing, seen
from txtopo import errors
from txtopo.connectors.files import FileSink


# hdfs-native waits for minutes.
@pytest.mark.thorough
def test_hdfs_that_is_away_is_waited_for_and_forbidden_folders_are_refused(
    hdfs: HdfsServer,
) -> None:
    root = hdfs.new_root()
    writing = Writing(FileSink(root))
    writing.write(1, 0, ROWS)
    hdfs.stop()
    with pytest.raises(errors.FailedException):
        writing.write(2, 0, ROWS[:1])
    hdfs.start()
    writing.write(2, 1, ROWS[:1])
    assert seen(root) == [(1, sorted(ROWS)), (2, ROWS[:1])]
    hdfs.forbid(root)
    with pytest.raises(errors.SetupError, match="may not be written"):
        Writing(FileSink(f"{root}/below")).write(1, 0, ROWS)
