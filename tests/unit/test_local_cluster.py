"""A local cluster that cannot be made leaves nothing behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from txtopo import LocalCluster, SetupError


def test_a_cluster_whose_zookeeper_does_not_start_leaves_no_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    with pytest.raises(SetupError, match="JAVA_HOME"):
        LocalCluster(progress=False)
    assert list(tmp_path.iterdir()) == []
