"""Another process that decides: for every line it is sent, it says whether it may."""

import asyncio
import sys

import semel
from semel.gate import KillSwitch


def main(url, env, way):
    s = semel.connect(url, env=env)
    gate, agate = s.gate(KillSwitch("safe_mode")), s.aio.gate(KillSwitch("safe_mode"))
    with asyncio.Runner() as loop:

        async def asked(key):
            return await agate.decide(key)

        for line in sys.stdin:
            key = f"reply:{line.strip()}"
            decision = gate.decide(key) if way == "sync" else loop.run(asked(key))
            sys.stdout.write(f"{decision.allowed}\n")
            sys.stdout.flush()
        loop.run(s.aio.close())


if __name__ == "__main__":
    main(*sys.argv[1:])
