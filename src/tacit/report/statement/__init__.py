"""The privacy statement of a run, and its verification.

* ``statement``: the privacy statement of a run; ``words``: its text for people.
* ``reading``: reads a statement and checks its fields; rebuilds the plan of statements of 0.2.0.
* ``verification``: checks that a statement's epsilon covers its event, and that its fields agree.
* ``charged_check``: compares a statement with the ledger that the run was charged to.
"""
