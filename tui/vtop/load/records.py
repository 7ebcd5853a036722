"""One exchange, on its way or ended, to numbers."""

from __future__ import annotations

from dataclasses import dataclass

from vtop.load.answer import Answer, gaps_s, read_answer, tpot_by_choice_s, tpot_s, verdict
from vtop.load.client import Exchange
from vtop.load.stats import RequestRecord
from vtop.load.workload import Prompt

LINGER_S = 0.25
"""How long a body may stay open after `[DONE]`."""
_RUNNING_KEY = b'"completion_tokens":'


@dataclass(slots=True)
class Order:
    """A request about to be sent."""

    index: int
    prompt: Prompt
    payload: bytes
    counted: bool
    scheduled_s: float | None = None
    place: int = 0
    """Of its prompt among those of the stage."""


def may_be_done(exchange: Exchange, now: float) -> bool:
    """Whether the last bytes were `[DONE]` and nothing came since; the words may also be generated text."""
    return bool(exchange.reads) and now - exchange.reads[-1][0] > LINGER_S and b"[DONE]" in exchange.reads[-1][1]


def count_so_far(exchange: Exchange) -> int:
    """Output tokens that an answer has brought by now: its running usage, else its events."""
    reads = exchange.reads
    while exchange.live_read < len(reads):
        chunk = reads[exchange.live_read][1]
        exchange.live_read += 1
        at = chunk.rfind(_RUNNING_KEY)
        if at >= 0:
            digits = chunk[at + len(_RUNNING_KEY) : at + len(_RUNNING_KEY) + 12].lstrip()
            end = 0
            while end < len(digits) and 48 <= digits[end] <= 57:
                end += 1
            if end:
                exchange.live_tokens = max(exchange.live_tokens, int(digits[:end]))
        else:
            exchange.live_tokens += chunk.count(b'"finish_reason":null') or chunk.count(b"data:")
    return exchange.live_tokens


def record_of(exchange: Exchange, order: Order) -> RequestRecord:
    """Reads an exchange that has ended."""
    record = RequestRecord(
        index=order.index,
        place=order.place,
        sent_s=exchange.sent_s,
        ended_s=exchange.ended_s,
        scheduled_s=order.scheduled_s,
        connect_s=exchange.connect_s,
        status=exchange.status,
        wanted_prompt_tokens=order.prompt.prompt_tokens,
    )
    lingered = exchange.failure == "lingers"
    if exchange.status is not None and exchange.status != 200:
        record.failure = f"http_{exchange.status}"
        record.detail = exchange.server_words()
        record.retry_after = exchange.header("retry-after")
        return record
    answer = read_answer(exchange.reads, ended_in_order=exchange.body_ended)
    _numbers(record, exchange, answer)
    failure, detail, note = verdict(answer, ended_in_order=exchange.body_ended)
    if exchange.failure and not lingered and not (answer.done and not failure):
        # The words of the server, where it said why, are worth more than how the connection ended.
        keep = failure in ("server_error_in_stream",)
        failure = failure if keep else {"reset": "stream_cut"}.get(exchange.failure, exchange.failure)
        detail = detail if keep else exchange.failure_detail
        if exchange.failure == "reset" and exchange.status is None:
            failure = "reset"
    elif not answer.events and not answer.done and exchange.body_ended:
        failure, detail = "not_a_stream", _not_a_stream(exchange)
    record.ok = not failure
    record.failure = failure
    record.detail = detail
    record.note = note if not failure else ""
    return record


def _numbers(record: RequestRecord, exchange: Exchange, answer: Answer) -> None:
    sent = exchange.sent_s
    stamps = answer.token_stamps
    record.token_stamps = stamps
    record.token_counts = answer.token_counts
    record.chunks = len(stamps)
    record.gaps_s = gaps_s(answer)
    record.finish_reason = answer.finish_reason
    record.prompt_tokens = answer.prompt_tokens
    record.output_tokens = answer.output_tokens
    record.cached_tokens = answer.cached_tokens
    record.text = answer.text
    if stamps:
        record.first_token_s = stamps[0]
        record.last_token_s = stamps[-1]
        record.ttft_s = stamps[0] - sent
        record.e2e_s = stamps[-1] - sent
    if answer.reasoning_seen and answer.first_answer_stamp is not None:
        record.first_answer_s = answer.first_answer_stamp
        record.ttfo_s = answer.first_answer_stamp - sent
    record.tpot_s = tpot_s(answer)
    record.tpot_by_choice_s = tpot_by_choice_s(answer) or None


def _not_a_stream(exchange: Exchange) -> str:
    kind = exchange.header("content-type") or "no content type"
    return f"status 200 without events ({kind}): {exchange.server_words()[:200]}"
