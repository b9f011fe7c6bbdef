"""A program that now and then does what only one may do at a time."""

import os
import time

import locksidecar

name = os.environ.get("NAME", "app")
rounds = int(os.environ.get("ROUNDS", "0"))  # 0 means no end
client = locksidecar.Client()

done = 0
while rounds == 0 or done < rounds:
    with client.lock("ledger") as held:
        print(f"{name} writes, fence {held.fence}")
        time.sleep(float(os.environ.get("TAKES", "0.5")))
    done += 1
