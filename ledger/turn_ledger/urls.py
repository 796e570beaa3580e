"""Ledger URLs: `sqlite:///turns.db` is relative, `sqlite:////srv/turns.db` absolute."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from turn_ledger.errors import CannotOpen

_SQLITE = "sqlite:///"
_EXAMPLES = "use sqlite:///turns.db (relative) or sqlite:////srv/turns.db (absolute)"


def sqlite_path(url: str) -> Path:
    """The file that a URL names. Raises `CannotOpen` for a URL that names none."""
    if not isinstance(url, str):
        raise CannotOpen(f"a ledger's URL is a text, not {url!r}; {_EXAMPLES}")
    scheme, colon, _ = url.partition(":")
    if scheme in ("postgresql", "postgres") and colon:
        raise CannotOpen(f"cannot open {scheme}: this version keeps ledgers in SQLite only; {_EXAMPLES}")
    if not url.startswith(_SQLITE):
        raise CannotOpen(f"{url!r} is no ledger URL; {_EXAMPLES}")
    path = unquote(url.removeprefix(_SQLITE))
    if not path or path.endswith("/") or "\x00" in path:
        raise CannotOpen(f"{url!r} names no file; {_EXAMPLES}")
    if path == ":memory:":
        raise CannotOpen("a ledger in memory is no ledger: its events would not outlive the process")
    return Path(path).absolute()
