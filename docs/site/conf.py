"""Sphinx's settings of the site; docs/site/build.py sets up its folder and calls it."""
import os

project = "ddpengine"
version = release = os.environ["DDP_SITE_VERSION"]
copyright = "the authors of ddpengine, Apache-2.0"  # noqa: A001
extensions = ["myst_parser"]
myst_heading_anchors = 4  # links to headings by GitHub's names
suppress_warnings = ["myst.header"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = []
nitpicky = True
language = "en"

html_theme = "furo"
html_title = f"ddpengine {version}"
html_copy_source = html_show_sourcelink = False
html_show_sphinx = False
html_show_search_summary = False  # it would be fetched, which a browser does not do for file://
html_static_path = [os.environ["DDP_SITE_STATIC"]]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
smartquotes = False  # "--check" keeps its dashes
# furo's own dark colours: Debian's build of it has them only for those who choose dark by the button
html_theme_options = {"dark_css_variables": {
    "color-problematic": "#ee5151",
    "color-foreground-primary": "#ffffffcc",
    "color-foreground-secondary": "#9ca0a5",
    "color-foreground-muted": "#81868d",
    "color-foreground-border": "#666666",
    "color-background-primary": "#131416",
    "color-background-secondary": "#1a1c1e",
    "color-background-hover": "#1e2124ff",
    "color-background-hover--transparent": "#1e212400",
    "color-background-border": "#303335",
    "color-background-item": "#444",
    "color-brand-primary": "#3d94ff",
    "color-brand-content": "#5ca5ff",
    "color-highlighted-background": "#083563",
    "color-highlight-on-target": "#333300",
    "color-admonition-background": "#18181a",
    "color-card-border": "var(--color-background-secondary)",
    "color-card-background": "#18181a",
    "color-card-marginals-background": "var(--color-background-hover)",
}}
pygments_style = "default"
pygments_dark_style = "native"
highlight_language = "none"


def setup(app):
    from pygments.lexers.configs import IniLexer
    app.add_lexer("net", IniLexer)  # nets in files: sections and keys
