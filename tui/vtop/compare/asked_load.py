"""The load test that every run of a comparison makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vtop.load.progress import LoadRequest
from vtop.load.shapes import changed
from vtop.results.comparison import CompareRequest


def asked_load(asked: CompareRequest) -> LoadRequest:
    """The load as it was asked for: one of one's own, or a workload, with the comparison's own values in it."""
    own = asked.load or LoadRequest(workload=asked.workload or "chat")
    wishes = {
        "concurrency": asked.concurrency,
        "requests": asked.requests,
        "max_tokens": asked.max_tokens,
        "warmup": asked.warmup,
    }
    return changed(own, wishes)


def load_of(asked: CompareRequest) -> LoadRequest:
    """What is sent in each run, without server, seed and label.

    Answers are of equal length unless it was asked otherwise: a slower configuration may just have written more.
    """
    load = asked_load(asked)
    return replace(load, ignore_eos=True if load.ignore_eos is None else load.ignore_eos)


def kept_for_later(asked: CompareRequest) -> CompareRequest:
    """The request as it is recorded: its load has a name, and its file is found from any folder."""
    load = asked.load
    if load is None:
        return replace(asked, workload=asked.workload or "chat")
    if load.file is not None:
        load = replace(load, file=str(Path(load.file).expanduser().resolve()))
    return replace(asked, workload=asked.workload or load.shape or load.workload, load=load)
