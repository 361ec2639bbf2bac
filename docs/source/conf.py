"""Sphinx configuration of the site, which is all of docs/.

`make docs` builds it, with warnings as errors; so does `make lint`.
"""

project = "mooncake-trtllm"
author = "The mooncake-trtllm authors"
root_doc = "source/index"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["requirements.txt"]
myst_heading_anchors = 3
# Pages link to files outside of docs/ too; the site shows their names as plain text. That every
# link resolves is checked by tests/python/test_docs.py.
suppress_warnings = ["myst.xref_missing"]
html_title = "mooncake-trtllm"
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "fixed_sidebar": "true"}
html_copy_source = False
