"""The certificate of a data set, and its check.

* ``certificate``: the certificate of a data set, from its ledger.
* ``statements``: the statements of the curator.
* ``registry``: the record for the registry of deployments.
* ``lines``: the checklist of a certificate, as plain text and as one HTML page, and mechanisms in words.
* ``signing``: Ed25519 signatures on certificates.
* ``check``: the check that the figures follow from the mechanisms, and the lines from the figures.
"""
