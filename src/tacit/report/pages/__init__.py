"""How do reports look? HTML pages and pictures, made of plain data.

* ``document``: one HTML page that needs no network, by the templates in ``templates``.
* ``run_page``: the report on a run, and its charts; ``run_summary``: its first words.
* ``canvas``: figures without a window system, and charts within a page as SVG.
* ``plots``: pictures of a run.
* ``guarantee_figures``: pictures of a risk sheet, and of what an event costs.
* ``plan_figures``: pictures of a plan's choice.
"""
