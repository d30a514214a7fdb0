"""Readable reports on a run or a data set: statements, certificates and pictures.

* ``statement``: the privacy statement of a run, and its verification.
* ``certificate``: the certificate of a data set, and its check.
* ``pages``: HTML pages and pictures.

These modules compute the plain data that pages and commands show:

* ``evaluated``, ``verdict``, ``figures``, ``labels``, ``by_column``: how good a model is.
* ``findings``: results of attacks and audits on a run.
* ``remembered``: the secrets that a language model remembers.
* ``risk``: the meaning of a guarantee for one person.
* ``pricing``: the cost of an event, by accountant.
* ``spending``: the charges of a data set, and the curator's view of a ledger.
* ``model_card``: the card of a released model.

``schema`` checks the data of statements and certificates against a JSON Schema.
"""

from tacit.report.certificate import Certificate, check_certificate, make_certificate
from tacit.report.statement import Statement, group_epsilon, make_statement

__all__ = [
    "Certificate",
    "Statement",
    "check_certificate",
    "group_epsilon",
    "make_certificate",
    "make_statement",
]
