"""`python -m llmkit` does what `llmkit` does."""

import sys

from llmkit.cli import main

sys.exit(main())
