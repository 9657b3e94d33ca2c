"""How the documentation is built; the parts made from the source are in ``generated.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import generated  # noqa: E402 - found only now

import txtopo  # noqa: E402

project = "txtopo"
author = "The txtopo authors"
project_copyright = author
version = release = txtopo.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"txtopo {release}"

myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"show-inheritance": True}


class RuleTests(SphinxDirective):
    """The table of the rules and the test files that check them."""

    def run(self) -> list[nodes.Node]:
        tests = HERE.parent / "tests"
        for path in tests.rglob("test_*.py"):
            self.env.note_dependency(str(path))
        return list(self.parse_text_to_nodes(generated.rule_table(tests)))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("rule-tests", RuleTests)
    return {"parallel_read_safe": True}
