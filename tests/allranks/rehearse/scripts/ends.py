"""End in one of the ways in which a Python program ends."""

import atexit
import sys
import threading
import time

atexit.register(lambda: print("exit function", flush=True))
threading.Thread(target=lambda: (time.sleep(0.3), print("thread", flush=True))).start()
print("last line")
if "text" in sys.argv:
    sys.exit("it ends because of this")
sys.exit(int(sys.argv[1]))
