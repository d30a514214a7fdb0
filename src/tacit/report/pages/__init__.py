"""HTML pages and pictures, made from plain data.

* ``document``: one HTML page that needs no network, from the templates in ``templates``.
* ``run_page``: the report on a run, and its charts; ``run_summary``: the sentences at its head.
* ``evaluation_charts``: the charts of an evaluation; ``column_charts``: charts of each column's effect.
* ``canvas``: figures without a window system, and charts within a page as SVG.
* ``plots``: pictures of a run.
* ``guarantee_figures``: pictures of a risk sheet, and of the cost of an event.
* ``plan_figures``: pictures that explain the choice of a plan.
"""
