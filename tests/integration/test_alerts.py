"""promtool takes the alert rules and the dashboard's queries, and each alert goes off in time."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.servers import more

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docs" / "alerts.yml"


def promtool(*arguments: str) -> str:
    """The output of promtool, which must succeed."""
    tool = more.promtool()
    command = [str(tool.program), *arguments]
    done = subprocess.run(
        command, env=tool.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_valid_and_each_alert_goes_off_in_its_case() -> None:
    assert "7 rules found" in promtool("check", "rules", str(RULES))
    assert "SUCCESS" in promtool("test", "rules", str(Path(__file__).with_name("alerts.yml")))


def test_the_dashboards_queries_are_valid(tmp_path: Path) -> None:
    panels = json.loads((ROOT / "docs" / "grafana.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = [{"record": f"query{n}", "expr": query} for n, query in enumerate(queries)]
    group = {"groups": [{"name": "dashboard", "rules": rules}]}
    (tmp_path / "rules.yml").write_text(json.dumps(group))  # JSON is YAML
    assert f"{len(queries)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))
