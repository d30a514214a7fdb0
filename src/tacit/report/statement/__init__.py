"""What does a run guarantee, and is a statement of it true?

* ``statement``: the privacy statement of a run.
* ``reading``: the fields of a statement, read back and checked.
* ``verification``: whether a statement's epsilon covers its event, and whether its fields agree.
* ``charged_check``: a statement against the ledger that the run was charged to.
"""
