"""Holds its slots for a few seconds and uses none of them."""

import sys
import time

time.sleep(float(sys.argv[1]))
