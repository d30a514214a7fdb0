"""What does a run guarantee, and is a statement of it true?

* ``statement``: the privacy statement of a run; ``words``: how people read it.
* ``reading``: the fields of a statement, read back and checked; the plan of those of 0.2.0.
* ``verification``: whether a statement's epsilon covers its event, and whether its fields agree.
* ``charged_check``: a statement against the ledger that the run was charged to.
"""
