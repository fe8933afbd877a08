"""`python -m embermq` is `embermq`."""

import sys

from embermq.cli.main import main

sys.exit(main())
