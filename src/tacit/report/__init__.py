"""What is left for people to read: statements, certificates and pictures."""

from tacit.report.certificate import Certificate, make_certificate
from tacit.report.certificate_check import check_certificate
from tacit.report.statement import Statement, group_epsilon, make_statement

__all__ = [
    "Certificate",
    "Statement",
    "check_certificate",
    "group_epsilon",
    "make_certificate",
    "make_statement",
]
