"""One client for the load benchmark: httpx with `aiter_lines`. Prints one JSON line."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import httpx
import uvloop


async def main() -> None:
    url, streams, requests, tokens = sys.argv[1], *map(int, sys.argv[2:5])
    limits = httpx.Limits(max_connections=streams, max_keepalive_connections=streams)
    gate = asyncio.Semaphore(streams)
    ttfts: list[tuple[float, float]] = []
    counted = 0
    async with httpx.AsyncClient(limits=limits, timeout=600.0) as client:

        async def one(number: int) -> None:
            nonlocal counted
            body = {
                "model": "normal",
                "messages": [{"role": "user", "content": f"Question {number}"}],
                "max_tokens": tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            async with gate:
                sent = time.monotonic()
                first = None
                async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
                    async for line in response.aiter_lines():
                        if not line.startswith("data: {"):
                            continue
                        now = time.monotonic()
                        event = json.loads(line[6:])
                        if event["choices"] and event["choices"][0]["delta"].get("content"):
                            first = first or now
                            counted += 1
                ttfts.append((sent, (first or sent) - sent))

        cpu = time.process_time()
        await asyncio.gather(*(one(number) for number in range(requests)))
        cpu = time.process_time() - cpu
    print(
        json.dumps(
            {"cpu_s": cpu, "tokens": counted, "failed": 0, "ttfts_s": [ttft for _, ttft in sorted(ttfts)], "lags_s": []}
        )
    )


if __name__ == "__main__":
    uvloop.run(main())
