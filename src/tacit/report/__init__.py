"""What do people read of a run or a data set? Statements, certificates and pictures.

* ``statement``: the privacy statement of a run, and its verification.
* ``certificate``: the certificate of a data set, and its check.
* ``pages``: HTML pages and pictures.

What pages and commands show, as plain data:

* ``findings``: what attacks and audits found on a run.
* ``remembered``: what a language model remembers.
* ``risk``: what a guarantee means for one person.
* ``pricing``: what an event costs, by accountant.
* ``spending``: the charges of a data set, and the curator's view of a ledger.

And what these share:

* ``schema``: plain data against a JSON Schema, by jsonschema.
"""

from tacit.report.certificate.certificate import Certificate, make_certificate
from tacit.report.certificate.check import check_certificate
from tacit.report.statement.statement import Statement, group_epsilon, make_statement

__all__ = [
    "Certificate",
    "Statement",
    "check_certificate",
    "group_epsilon",
    "make_certificate",
    "make_statement",
]
