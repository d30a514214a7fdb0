"""How do reports look? HTML pages and pictures, made of plain data.

* ``document``: one HTML page that needs no network.
* ``chart``: charts as SVG text.
* ``run_page``: the report on a run; ``run_charts``: its charts.
* ``remembered_page``: its section on what a language model remembers.
* ``curator_page``: the curator's view of a ledger.
* ``written``: a report in a folder.
* ``canvas``: figures without a window system.
* ``plots``: pictures of a run.
* ``guarantee_figures``: pictures of a risk sheet, and of what an event costs.
* ``plan_figures``: pictures of a plan's choice.
"""
