"""What the store raises. Refusals are values; these are the cases where there is no answer.

StoreError
├── StoreUnavailable   full disk, read-only file, corrupt page: nothing was stored
├── StoreTooNew        the store was written by a newer program
├── LogUnreadable      a row of the audit log was changed
├── KeyInUse           a key was to be changed or replaced by itself
└── LostUpdate         a guarded UPDATE met another revision: a defect, all is undone
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of everything the store raises."""


class StoreUnavailable(StoreError):
    """Nothing was stored, so nothing may be sent."""


class StoreTooNew(StoreError):
    """The store's schema is unknown to this program; it is left untouched."""


class LostUpdate(StoreError):
    """The row was not in the revision that the decision was made on."""


class LogUnreadable(StoreError):
    """A row of the audit log cannot be opened."""


class KeyInUse(StoreError):
    """The key is there and in use, so nothing was changed."""
