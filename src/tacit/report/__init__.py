"""Readable reports on a run or a data set: statements, certificates, pages and figures."""

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
