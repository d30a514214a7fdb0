"""Settings of Sphinx for the site, which needs no network when it is built or read."""

from __future__ import annotations

import os
import posixpath
import re
import sys
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import nbformat
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from myst_nb.core import render
from myst_nb.core.utils import coalesce_streams

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
# Tutorials call the command line of the environment that builds the site.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))

from reference_pages import write_pages  # noqa: E402 (needs the path above)

import tacit  # noqa: E402

project = "Tacit"
author = "The Tacit authors"
copyright = "the Tacit authors, Apache License 2.0"  # noqa: A001 (Sphinx reads this name)
version = release = tacit.__version__
REPOSITORY = "https://github.com/tacit-dp/tacit"
PLAYGROUND = "src/tacit/cli/playground.html"  # a separate page, which is copied into the site
TEMPLATES = "src/tacit/report/templates"  # of Tacit's pages, which share colours and logo with the site

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
]
exclude_patterns = ["_build", "reference/generated/notebooks"]
source_suffix = {".md": "myst-nb", ".rst": "restructuredtext"}
language = "en"
smartquotes = False  # they would turn the two hyphens of an option into a dash

# --- pages -----------------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "cache"  # the code of a page runs again only if it has changed
nb_execution_cache_path = os.environ.get("TACIT_DOCS_CACHE", str(HERE.parent / "build" / "docs-cache"))
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 240
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars and messages of other libraries

# --- the reference ---------------------------------------------------------------------------------------

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # a method of an interface is described once, there
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# From the source alone, settings that a decorator adds to a signature would be missing.
autodoc_preserve_defaults = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries = False

# --- looks -----------------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "Tacit"
html_static_path = ["_static", f"../{PLAYGROUND}", f"../{TEMPLATES}/colours.css"]
html_css_files = ["colours.css", "site.css"]
html_js_files = ["site.js"]
html_logo = html_favicon = f"../{TEMPLATES}/logo.svg"
html_show_sourcelink = False
html_copy_source = False
html_math_renderer = "mathml"
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "Tacit"},
    "icon_links": [{"name": "Source code", "url": REPOSITORY, "icon": "fa-brands fa-github"}],
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "show_toc_level": 2,
    "navigation_depth": 3,
    "show_nav_level": 1,
    "collapse_navigation": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "back_to_top_button": True,
}
html_sidebars = {"results": [], "index": []}
suppress_warnings = [
    "config.cache",  # the renderer of mathematics below is a function
    "myst-nb.lexer",  # of cells where their code is not run
]

_LINK = re.compile(r"(?<!!)(\[[^\]]*\]\()(\.\.?/[^)\s]*)\)")


def link_to_the_repository(_app: Any, name: str, source: list[str]) -> None:
    """Point links of a page to files outside this folder to the repository."""
    folder = posixpath.dirname(name)

    def changed(found: re.Match[str]) -> str:
        path, mark, anchor = found[2].partition("#")
        target = posixpath.normpath(posixpath.join("docs", folder, path))
        if target == "docs" or target.startswith("docs/"):
            return found[0]
        if target == PLAYGROUND:
            up = "../" * name.count("/")
            return f'<a href="{up}_static/{posixpath.basename(target)}">{found[1][1:-2]}</a>'
        return f"{found[1]}{REPOSITORY}/blob/main/{target}{mark}{anchor})"

    source[0] = _LINK.sub(changed, source[0])


def skip_what_sklearn_adds(
    _app: Any, _what: str, name: str, _value: object, skip: bool, _options: object
) -> bool:
    """Skip the methods that scikit-learn adds to each estimator for metadata routing."""
    return skip or bool(re.fullmatch(r"set_\w+_request|get_metadata_routing", name))


def formula(translator: Any, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers render without JavaScript."""
    shown = isinstance(node, nodes.math_block)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        drawn = tex2mathml(node.astext(), as_block=shown)
    translator.body.append(f'<div class="math">{drawn}</div>' if shown else drawn)
    raise nodes.SkipNode


# Faults for screen readers: a label that hides the key, a fold without a label, definition lists without
# definitions, and table headers without text.
_MENDED = (
    (
        re.compile(r'(<button[^>]*search-button-field[^>]*) aria-label="Search"'),
        r'\1 aria-label="Search Ctrl+K"',
    ),
    (re.compile(r"<summary>(<span class=\"toctree-toggle\")"), r'<summary aria-label="Pages below">\1'),
    (re.compile(r'<th class="head"><p></p></th>'), "<td></td>"),
    (re.compile(r"<dd>(<em class=\"sig-param\">.*</em>,?)</dd>"), r'<span class="sig-line">\1</span>'),
    (re.compile(r"<dl>\n((?:<span class=\"sig-line\">.*\n)+)</dl>"), r"\1"),
)


def mend_pages(app: Any, problem: Exception | None) -> None:
    """Correct the written pages for screen readers."""
    if problem or app.builder.name != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        if path.parent.name == "_static":
            continue
        text = found = path.read_text(encoding="utf-8")
        for pattern, better in _MENDED:
            text = pattern.sub(better, text)
        if text != found:
            path.write_text(text, encoding="utf-8")


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
_CELL = re.compile(r"^```\{code-cell\}\n((?::[^\n]*\n)*)(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
_PAGE = re.compile(r"(\]\()([\w./-]+\.md)\b")


def prose_cell(prose: str, name: str) -> list[Any]:
    """Return a cell of prose, if there is any, whose links to other pages lead to the repository."""
    folder = f"{REPOSITORY}/blob/main/docs/{posixpath.dirname(name)}/"
    prose = re.sub(r"^```\{important\}\n(.*?)^```$", r"\1", prose, flags=re.MULTILINE | re.DOTALL)
    prose = _PAGE.sub(lambda found: found[1] + urljoin(folder, found[2]), prose).strip()
    return [nbformat.v4.new_markdown_cell(prose)] if prose else []


def offer_a_notebook(_app: Any, name: str, source: list[str]) -> None:
    """Write a tutorial as a notebook, which the page offers for download, if it has code that runs."""
    page = source[0]
    if not name.startswith("tutorials/") or not _CELL.search(page):
        return
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": KERNEL})
    _, _, prose = page.partition("\n---\n")  # after the settings of the page
    at = 0
    for cell in _CELL.finditer(prose):
        notebook.cells += prose_cell(prose[at : cell.start()], name)
        if "remove-cell" not in cell[1]:
            notebook.cells.append(nbformat.v4.new_code_cell(cell[2].rstrip()))
        at = cell.end()
    notebook.cells += prose_cell(prose[at:], name)
    folder = HERE / "reference" / "generated" / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{posixpath.basename(name)}.ipynb"
    nbformat.write(notebook, file)
    target = f"../reference/generated/notebooks/{file.name}"
    source[0] = f"{page}\n{{download}}`Download this page as a notebook <{target}>`\n"


def whole_streams(outputs: list[Any]) -> list[Any]:
    """Join the outputs of a cell, as MyST-NB would break lines between the 100-byte chunks of %%bash."""
    whole: list[Any] = []
    streams: dict[str, Any] = {}
    for output in outputs:
        if output["output_type"] != "stream":
            whole.append(output)
        elif output["name"] in streams:
            streams[output["name"]]["text"] += output["text"]
        else:
            streams[output["name"]] = output
            whole.append(output)
    return coalesce_streams(whole)


def setup(app: Any) -> dict[str, bool]:
    render.coalesce_streams = whole_streams
    write_pages(HERE / "reference" / "generated")
    app.connect("build-finished", mend_pages)
    app.connect("source-read", offer_a_notebook)
    app.connect("source-read", link_to_the_repository)
    app.connect("autodoc-skip-member", skip_what_sklearn_adds)
    app.add_html_math_renderer("mathml", inline_renderers=(formula, None), block_renderers=(formula, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
