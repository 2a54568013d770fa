"""What disk and index may raise, by what is to be done about it: built anew, or taken for a miss. Decides nothing."""

from __future__ import annotations

import struct

import lmdb

_OF_LMDB = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.PageNotFoundError,
    lmdb.IncompatibleError,
    lmdb.BadTxnError,
    lmdb.CursorFullError,
    lmdb.PageFullError,
    lmdb.PanicError,
)
DAMAGED = (*_OF_LMDB, struct.error, ValueError, LookupError, ArithmeticError)
"""What an index raises whose file is damaged, by LMDB or by whoever takes its content apart: it is to be built anew."""
TROUBLE = (OSError, lmdb.Error, *DAMAGED)
"""Each is a miss, or a value not stored."""
