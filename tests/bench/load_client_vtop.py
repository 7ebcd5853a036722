"""One client for the load benchmark: vtop's, as its worker runs it. Prints one JSON line."""

from __future__ import annotations

import json
import sys
import time

import uvloop

from vtop.load import engine
from vtop.load.client import Exchange, Target
from vtop.load.preflight import ensure_files
from vtop.load.progress import LoadRequest
from vtop.load.records import Order
from vtop.load.stage import LocalDriver, PromptSource
from vtop.load.stats import RequestRecord
from vtop.load.undisturbed import undisturbed
from vtop.load.words import WordSource
from vtop.load.workload import resolve

LAGS: list[float] = []


def spy(exchange: Exchange, order: Order) -> RequestRecord:
    """Also takes the delivery lag: arrival minus the server's own stamp in the event."""
    for stamp, chunk in exchange.reads:
        at = chunk.find(b'"created": ')
        if at >= 0:
            LAGS.append(stamp - int(chunk[at + 11 : chunk.index(b",", at)]) / 1e9)
    return READ(exchange, order)


READ = engine.record_of


async def main() -> None:
    url, streams, requests, tokens, lags = sys.argv[1], *map(int, sys.argv[2:6])
    if lags:
        engine.record_of = spy
    ensure_files(streams)
    shape = resolve(
        LoadRequest(
            workload="demo",
            url=url,
            model="normal",
            concurrency=streams,
            requests=requests,
            max_tokens=tokens,
            warmup=0,
        )
    )
    driver = LocalDriver(
        target=Target.from_url(url),
        model="normal",
        api_key=None,
        running_usage=False,
        prompts=PromptSource(shape, WordSource()),
    )
    await driver.prepare(shape, lambda record: None)
    with undisturbed():
        cpu = time.process_time()
        await driver.run()
        cpu = time.process_time() - cpu
    records = sorted(driver.records, key=lambda record: record.sent_s)
    await driver.close()
    print(
        json.dumps(
            {
                "cpu_s": cpu,
                "tokens": sum(record.output_tokens or 0 for record in records),
                "failed": sum(not record.ok for record in records),
                "ttfts_s": [record.ttft_s for record in records],
                "lags_s": sorted(LAGS),
            }
        )
    )


if __name__ == "__main__":
    uvloop.run(main())
