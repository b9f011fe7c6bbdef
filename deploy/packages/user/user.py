"""What a stranger writes first, with the types that strict checkers want to see."""

import asyncio

import locksidecar
import locksidecar.asyncio


async def later() -> int:
    async with locksidecar.asyncio.Client() as client, client.lock("user.py", ttl=5) as held:
        return held.fence


with locksidecar.Client() as client:
    with client.lock("user.py", ttl=5) as held:
        fence: int = held.fence
    try:
        held.release()
    except locksidecar.NotHeld as e:
        problem: locksidecar.LockError = e
    lock: locksidecar.Lock = client.lock("user.py", shared=True)
    if lock.acquire(timeout=2.5):
        lock.release()

if asyncio.run(later()) <= fence:
    raise SystemExit("the fence did not rise")
print(locksidecar.__version__)
