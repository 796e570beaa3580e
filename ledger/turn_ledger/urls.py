"""Ledger URLs: `sqlite:///turns.db` is relative, `sqlite:////srv/turns.db` absolute.

Spaces and letters of any script may stand as they are. `?` and `#` must be written `%3F` and `%23`,
because in a URL they begin something else; a `%` before two hex digits must be written `%25`.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from turn_ledger.errors import CannotOpen

_SQLITE = "sqlite:///"
_EXAMPLES = "use sqlite:///turns.db (relative) or sqlite:////srv/turns.db (absolute)"


def sqlite_path(url: str) -> Path:
    """The file that a URL names, absolute and without links. Raises `CannotOpen` if it names none."""
    if not isinstance(url, str):
        raise CannotOpen(f"a ledger's URL is a text, not {url!r}; {_EXAMPLES}")
    scheme, colon, _ = url.partition(":")
    if scheme in ("postgresql", "postgres") and colon:
        raise CannotOpen(f"cannot open {scheme}: this version keeps ledgers in SQLite only; {_EXAMPLES}")
    if not url.startswith(_SQLITE):
        is_plain_path = url and ":" not in url
        how = f"the URL of that file is {sqlite_url(Path(url))}" if is_plain_path else _EXAMPLES
        raise CannotOpen(f"{url!r} is no ledger URL; {how}")
    if "?" in url or "#" in url:
        raise CannotOpen(f"{url!r} has options, which a ledger's URL has not; write ? as %3F and # as %23")
    try:
        path = os.fsdecode(unquote_to_bytes(url.removeprefix(_SQLITE)))
    except UnicodeEncodeError as error:
        raise CannotOpen(f"{url!r} is no ledger URL: {error}; {_EXAMPLES}") from error
    if not path or path.endswith("/") or "\x00" in path:
        raise CannotOpen(f"{url!r} names no file; {_EXAMPLES}")
    if path == ":memory:":
        raise CannotOpen("a ledger in memory is no ledger: its events would not outlive the process")
    # Links are followed here: the locks of hosts and the log of SQLite lie beside the file itself.
    return Path(path).resolve()


def sqlite_url(path: Path) -> str:
    """The URL that names a file, whatever its name is made of."""
    return _SQLITE + quote(os.fsencode(path))
