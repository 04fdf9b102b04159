"""`python -m resilience`: the command line, where the rest of mqlake is not."""

import sys

from resilience.command import main

if __name__ == "__main__":
    sys.exit(main())
