"""The other party of the interop test: redis-py's own Lock, driven over stdin and stdout.

A line in is a JSON array, [command, argument, ...]; a line out is its JSON result.
A wait runs in a thread of its own and is answered with [name, result] when it ends,
so that the driver can do its part meanwhile.
"""

import json
import sys
import threading

import redis
from redis.exceptions import LockError

client = redis.Redis.from_url(sys.argv[1])
locks = {}
out = threading.Lock()


def say(value):
    with out:
        print(json.dumps(value), flush=True)


def acquire(name, key, ttl, wait):
    lock = client.lock(
        key, timeout=ttl, blocking_timeout=wait or None, sleep=0.02, thread_local=False
    )
    ok = lock.acquire(blocking=wait > 0)
    if ok:
        locks[name] = lock
    return ok


def release(name):
    try:
        locks.pop(name).release()
    except LockError as e:
        return type(e).__name__
    return "ok"


def main():
    for line in sys.stdin:
        command, *args = json.loads(line)
        if command == "try":
            say(acquire(*args, 0))
        elif command == "wait":
            name = args[0]
            threading.Thread(target=lambda: say([name, acquire(*args)]), daemon=True).start()
        elif command == "release":
            say(release(*args))
        elif command == "owned":
            say(locks[args[0]].owned())
        elif command == "extend":
            say(bool(locks[args[0]].extend(args[1], replace_ttl=True)))
        elif command == "locked":
            say(client.lock(args[0]).locked())
        else:
            raise SystemExit(f"unknown command {command}")


main()
