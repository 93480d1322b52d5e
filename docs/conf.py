"""How Sphinx builds the documentation; `scripts/docs` runs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

from tunekit.version import VERSION

project = "tunekit"
author = "The tunekit developers"
copyright = "The tunekit developers"
version = release = VERSION

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"tunekit {VERSION}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("_static") / "search.js")  # not relative to this

# Only input has copy buttons, which leave out the prompts.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_selector = ":is(.highlight-python, .highlight-console, .highlight-default) pre"

# Allow links to headings as in a repository: restoring.md#a-time-budget.
myst_heading_anchors = 3

# The members of a class are in the order of its source, most important first.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Every name in a docstring or a signature must exist (`-n -W`), except names that are documented
# elsewhere, because the build does not access other sites.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(ray|pandas|pyarrow|optuna)\..*"),
    (r"py:.*", r"(collections\.abc|msgspec|pathlib|typing)\..*"),
    (r"py:class", r"[\d.]+"),  # the bounds of a number, in its type
    (r"py:class", r"(tune|train)\.(TuneConfig|ValidationConfig)"),
    # Interfaces that appear only in signatures.
    (r"py:class", r"tunekit\.journal\.(journal\.Record|storage\.Folder|lock\.Driver)"),
    (r"py:class", r"tunekit\.core\.events\._Kind"),
    (r"py:class", r"tunekit\.core\.decision_points\.DecisionRule|Trial"),
]


def _keep_colons(app, what, name, obj, options, lines):
    """Allow a colon in the first line of an attribute, where napoleon expects a type before it.

    Inserts an empty comment as the first line.
    """
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]


def setup(app):
    """Connect the function above; Sphinx calls this."""
    app.connect("autodoc-process-docstring", _keep_colons, priority=400)  # before napoleon's 500
