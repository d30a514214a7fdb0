"""One HTML page that needs no network: its head, its style, light and dark, wide and narrow."""

from __future__ import annotations

from html import escape

from tacit.report.pages.chart import STYLE

# A div of class wide scrolls by itself: it has tabindex="0", so that keys can scroll it.
_LAYOUT = """
* { box-sizing: border-box; } body { margin: 0; background: var(--paper); color: var(--ink);
  font: 17px/1.55 system-ui, sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 1.2rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .4rem 0; overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .4rem; }
p { margin: .6rem 0; } .soft { color: var(--soft); font-size: .92rem; }
.secret { border-left: 4px solid var(--two); padding: .3rem .8rem; background: var(--card); }
ol.short { list-style: none; margin: 1rem 0; padding: 0; display: grid; gap: .8rem; }
ol.short li { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .7rem .9rem; }
ol.short b, ol.short span { display: block; } ol.short p { margin: 0; }
ol.short span { font-size: 1.35rem; line-height: 1.25; }
ol.short li:has(div) { display: grid; grid-template-columns: 10rem 1fr; gap: .4rem 1rem; }
.verdict { font-size: 1.12rem; border-left: 5px solid var(--three); padding: .5rem .9rem;
  background: var(--card); } .verdict.bad { border-color: var(--two); color: inherit; font-weight: 400; }
.evidence { display: flex; gap: 1rem; align-items: flex-start; } .evidence > div { flex: 1; min-width: 0; }
.evidence img { width: 7rem; image-rendering: pixelated; border: 1px solid var(--line); border-radius: 4px; }
details { margin: .8rem 0; } summary { cursor: pointer; font-weight: 600; padding: .3rem 0; }
@media (max-width: 34rem) { ol.short li:has(div) { grid-template-columns: 1fr; }
  .evidence { flex-direction: column; } }
.good { color: var(--three); } .bad { color: var(--two); font-weight: 700; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .95rem; line-height: 1.45; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem; width: 100%; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
.bar { height: 1.5rem; border-radius: 4px; background: var(--line); margin: .15rem 0 .5rem; }
.bar i { display: block; height: 100%; border-radius: 4px; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.3rem, 1fr)); gap: .6rem; }
.gallery figure { margin: 0; text-align: center; } .gallery img { width: 100%; image-rendering: pixelated;
  border: 1px solid var(--line); border-radius: 4px; background: #fff; }
.drawn { width: auto; } .drawn img { width: 4.5rem; image-rendering: pixelated; border-radius: 4px; }
.gallery figcaption { font-size: .82rem; line-height: 1.3; color: var(--ink); white-space: nowrap; }
.gallery b { white-space: normal; overflow-wrap: anywhere; }
dt { font-weight: 600; margin-top: .6rem; }
dd { margin: 0; } .typed { font-family: ui-monospace, monospace; white-space: pre; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--card); padding: .6rem; }
"""


def document(title: str, body: str, *, style: str = "") -> str:
    """A whole page.

    :param title: plain text.
    :param body: HTML, made by the caller from escaped text.
    :param style: further rules.

    >>> document("A & B", "<p>all</p>").splitlines()[0]
    '<!DOCTYPE html>'
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{_LAYOUT}{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )
