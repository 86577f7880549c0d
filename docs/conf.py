"""The documentation site: `make docs` builds it, and a warning fails the build."""

from importlib import metadata

project = "Karpenter in Python"
author = "the authors of Karpenter in Python"
release = version = metadata.version("karpenter")
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"{project} {release}"
html_show_sourcelink = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["mermaid"]
autodoc_typehints = "signature"
autodoc_default_options = {"show-inheritance": False}
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
