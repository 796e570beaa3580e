"""`python -m simulation`: see `campaign`."""

import sys

from simulation.campaign import main

if __name__ == "__main__":
    sys.exit(main())
