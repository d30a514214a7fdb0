"""The privacy statement of a run, and its verification.

* ``statement``: the privacy statement of a run; ``words``: its plain text.
* ``reading``: reads a statement, checks its fields, and rebuilds the plan of a statement by Tacit 0.2.0.
* ``verification``: checks that a statement's epsilon covers its event, and that its fields agree.
* ``charged_check``: compares a statement with the ledger that the run was charged to.
"""
