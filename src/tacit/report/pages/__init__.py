"""How do reports look? HTML pages and pictures, made of plain data.

* ``document``: one HTML page that needs no network.
* ``chart``: charts as SVG text.
* ``run_page``: the report on a run; ``run_charts``: its charts.
* ``remembered_page``: its section on what a language model remembers.
* ``curator_page``: the curator's view of a ledger.
* ``written``: a report in a folder.
* ``canvas``: figures without a window system.
* ``plots``: pictures of a run.
* ``pricing_figure``: the picture of what an event costs.
* ``risk_figure``: the pictures of a risk sheet.
* ``batches``: the picture of a plan's choice.
"""
