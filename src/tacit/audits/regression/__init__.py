"""What must a change to the code not break? The privacy regression suite, as functions on real sessions.

* L0, :func:`replay_on_neighbours`: the same key on data sets that differ in one record.
* L1, :func:`noise_of_run`: what was released less the definition's sums, for :func:`tacit.audits.noise_law`.
* L2, :func:`check_accounting`: who took part, how often something was released, and what was accounted for.
* L3: a run with audit slots, by :func:`tacit.audits.audit_slots`.

No layer suffices alone.  Slots do not show a bound that only holds per layer, nor noise that is too large; a
replay does not show the noise at all.  They work for any function that makes a session, so a project can test
its own model, loss and settings.
"""

from tacit.audits.regression.accounted import AccountingFindings, check_accounting
from tacit.audits.regression.noise import noise_of_run
from tacit.audits.regression.recorder import NotedRows, Recorder, Release, perform
from tacit.audits.regression.replay import Build, Difference, replay_on_neighbours

__all__ = [
    "AccountingFindings",
    "Build",
    "Difference",
    "NotedRows",
    "Recorder",
    "Release",
    "check_accounting",
    "noise_of_run",
    "perform",
    "replay_on_neighbours",
]
