"""`python -m turn_adapters.cli` is the `turn-ledger` command."""

from turn_adapters.cli import main

main()
