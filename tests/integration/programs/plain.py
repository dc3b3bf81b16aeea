"""No Spark at all."""

import os
import sys

print("hello from plain", sys.argv[1:], os.getcwd())
print("a word on standard error", file=sys.stderr)
