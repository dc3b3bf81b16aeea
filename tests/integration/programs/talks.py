"""Prints for a long time, and leaves a process behind that has detached itself."""

import subprocess
import sys
import time

subprocess.Popen(["sleep", "600"], start_new_session=True)
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    time.sleep(0.05)
