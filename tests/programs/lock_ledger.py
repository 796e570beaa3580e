"""Holds the write lock of a ledger's file until its standard input is closed.

python tests/programs/lock_ledger.py '{"path": "turns.db"}'
"""

from __future__ import annotations

import json
import sqlite3
import sys

if __name__ == "__main__":
    connection = sqlite3.connect(json.loads(sys.argv[1])["path"], isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    print('{"locked": true}', flush=True)
    sys.stdin.read()
