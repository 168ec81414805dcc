"""``python -m spsbench``."""

from __future__ import annotations

import sys

from spsbench.cli.main import main

sys.exit(main())
