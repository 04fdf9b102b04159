"""`python -m mqlake`: the command line."""

import sys

from mqlake.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
