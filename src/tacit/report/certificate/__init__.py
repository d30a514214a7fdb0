"""What does a data set's certificate promise, and is it true?

* ``certificate``: the certificate of a data set, from its ledger.
* ``statements``: what the curator states.
* ``registry``: the record for the registry of deployments.
* ``lines``: the checklist of a certificate, as plain text, and as one HTML page; mechanisms in words.
* ``signing``: Ed25519 signatures over certificates.
* ``check``: whether figures follow from mechanisms, and lines from figures.
"""
