"""One client for the load benchmark: the request function of `vllm bench serve`, run by an environment with vLLM.

Driven as that command does: one aiohttp session, a semaphore over tasks that are made at once, garbage collection
frozen.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time

import aiohttp
from vllm.benchmarks.lib.endpoint_request_func import (  # type: ignore[import-not-found]
    RequestFuncInput,
    async_request_openai_chat_completions,
)


async def main() -> None:
    url, streams, requests, tokens = sys.argv[1], *map(int, sys.argv[2:5])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connector = aiohttp.TCPConnector(
        limit=streams, limit_per_host=streams, ttl_dns_cache=300, use_dns_cache=True, keepalive_timeout=60
    )
    session = aiohttp.ClientSession(
        connector=connector, trust_env=True, timeout=aiohttp.ClientTimeout(total=6 * 60 * 60), read_bufsize=2**16
    )
    gate = asyncio.Semaphore(streams)

    async def one(number: int) -> object:
        given = RequestFuncInput(
            prompt=f"Question {number}: explain in a few sentences.",
            api_url=f"{url}/v1/chat/completions",
            prompt_len=20,
            output_len=tokens,
            model="normal",
        )
        async with gate:
            return await async_request_openai_chat_completions(given, session=session)

    gc.collect()
    gc.freeze()
    cpu = time.process_time()
    outputs = await asyncio.gather(*(one(number) for number in range(requests)))
    cpu = time.process_time() - cpu
    await session.close()
    outputs.sort(key=lambda output: output.start_time)
    print(
        json.dumps(
            {
                "cpu_s": cpu,
                "tokens": sum(output.output_tokens or 0 for output in outputs),
                "failed": sum(not output.success for output in outputs),
                "ttfts_s": [output.ttft for output in outputs],
                "lags_s": [],
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
