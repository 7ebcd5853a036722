"""The log of a dead server -> its cause, in one line with its numbers, and what to change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vtop.clock import FakeClock
from vtop.vllm.causes import CAUSES, GENERIC, Cause
from vtop.vllm.lifecycle import DeathContext, Diagnosis, Remedy
from vtop.vllm.logtext import LogLine, messages
from vtop.vllm.remedies import Evidence, exit_words, illegal, illegal_title, signal_of
from vtop.vllm.startup import StartupTracker

_BANNER = re.compile(r"vLLM API server version |  version \d[\w.+-]*\s*$")
_READY = re.compile(r"^Application startup complete")
_ASKED_TO_STOP = re.compile(
    r"API server: shutdown triggered|^Shutting down FastAPI|^Shutting down$|Received SIGTERM|KeyboardInterrupt"
)
_RETRIED = re.compile(r"^(?:Error retrieving|Error parsing|Retrying)|, retrying \d+ of \d+$")
_SUMMARY = re.compile(
    r"Engine core initialization failed|Engine process failed to start|WorkerProc initialization failed|"
    r"Got fatal signal from worker processes|EngineDeadError|EngineCore failed to start|WorkerProc hit an exception"
)
"""Lines that only say that something above failed."""
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)\b: ?.*\S")
_CLASS = re.compile(r"^(?:ERROR: +)?(?:[\w.]+\.)?\w*(?:Error|Exception): ")
_PYDANTIC_TAIL = re.compile(r" \[type=\w+, input_value=.*$")
_SECRETS = (
    (re.compile(r"(api[_-]?key['\"]?(?:[=: ]|, )+\[?['\"]?)[^'\"\s,)\]]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), "***"),
    (re.compile(r"(Bearer )\S+"), r"\1***"),
)
_SETTINGS = {
    "max_model_len",
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "port",
    "kv_cache_dtype",
    "quantization",
    "dtype",
    "model",
}
_LONGEST_SENTENCE = 300


@dataclass(frozen=True, slots=True)
class _Candidate:
    cause: Cause
    match: re.Match[str]
    line: LogLine


def diagnose(lines: Iterable[str], *, exit_code: int | None = None, context: DeathContext | None = None) -> Diagnosis:
    """Why this server died.

    Args:
        lines: its log as written: any version, colours, redrawn bars, ranks that repeat, lines cut by a terminal.
        exit_code: of its first process; negative for a signal. vLLM also exits with 0 after a crash.
        context: what else is known.

    Returns:
        The cause. Code `unknown` with the last error line where no known cause is found, `no-failure` where the log
        shows none, `stopped` where it was asked to stop.
    """
    context = context or DeathContext()
    log = _last_run(list(messages(lines)))
    ready_at = next((index for index, line in enumerate(log) if _READY.match(line.text)), None)
    evidence = _evidence(log, context, ready_at is not None or context.was_ready)
    candidates = _candidates(log, ready_at)
    best = max(candidates, key=lambda candidate: (candidate.cause.weight, candidate.line.number), default=None)
    where = _where(log, ready_at)
    if best is None or best.cause.weight < GENERIC:
        by_exit = _by_exit(exit_code, context, evidence, where)
        if by_exit is not None:
            return by_exit
    if best is not None:
        return _explain(best, candidates, evidence, exit_code, where)
    return _without_cause(log, ready_at, exit_code, where)


def _last_run(log: list[LogLine]) -> list[LogLine]:
    """Lines since the last start: an appended log must not blame the run before."""
    starts = [index for index, line in enumerate(log) if _BANNER.search(line.text)]
    return log[max(0, starts[-1] - 1) :] if starts else log


def _candidates(log: list[LogLine], ready_at: int | None) -> list[_Candidate]:
    found = []
    for index, line in enumerate(log):
        if line.level in ("DEBUG", "INFO", "WARNING") or _RETRIED.search(line.text) or line.text.startswith("  File "):
            continue
        for cause in CAUSES:
            if ready_at is not None and (index < ready_at or not cause.at_run_time):
                continue
            if match := cause.pattern.search(line.text):
                found.append(_Candidate(cause, match, line))
    return found


def _evidence(log: list[LogLine], context: DeathContext, started: bool) -> Evidence:
    settings: dict[str, str] = {}
    for line in log:
        if line.text.startswith("non-default args: "):
            settings.update(_non_default(line.text.removeprefix("non-default args: ")))
        elif line.text.startswith("args: Namespace("):
            settings.update(_namespace(line.text))
    settings.update({name: str(value) for name, value in context.settings.items()})
    bars = [match for line in log if (match := re.search(r"% Completed \| (\d+)/(\d+)", line.text))]
    shards = (int(bars[-1][1]), int(bars[-1][2])) if bars else None
    return Evidence(settings, context, shards, started)


def _non_default(text: str) -> Mapping[str, str]:
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    chosen = {name: str(value) for name, value in values.items() if name in _SETTINGS}
    if "tensor_parallel_size" in values:
        chosen["tensor_parallel"] = str(values["tensor_parallel_size"])
    return chosen


def _namespace(text: str) -> Mapping[str, str]:
    values = {name: quoted or bare for name, quoted, bare in re.findall(r"\b(\w+)=(?:'([^']*)'|([\w.+-]+))", text)}
    chosen = {name: value for name, value in values.items() if name in _SETTINGS and value != "None"}
    if "tensor_parallel_size" in values:
        chosen["tensor_parallel"] = values["tensor_parallel_size"]
    return chosen


def _where(log: list[LogLine], ready_at: int | None) -> str:
    if ready_at is not None:
        return "It had started and then died."
    tracker = StartupTracker(FakeClock())
    for line in log:
        tracker.feed(line.text)
    progress = tracker.progress()
    return "" if progress.phase in ("launch", "config") else f"It died while {progress.text}."


def _by_exit(exit_code: int | None, context: DeathContext, evidence: Evidence, where: str) -> Diagnosis | None:
    """What the exit codes alone say."""
    own, workers = signal_of(exit_code), [signal_of(code) for code in context.worker_exit_codes]
    if 4 in (own, *workers):
        return Diagnosis(
            "worker-illegal-instruction", illegal_title(None, evidence), where, tuple(illegal(None, evidence))
        )
    if exit_code is None or own in (None, 15):
        return None
    words = exit_words(exit_code)
    remedy = {
        9: "Look at `dmesg` for the OOM killer and at the container's memory limit; then start it again",
        7: "Give the container more shared memory (`--shm-size`, `--ipc=host`)",
    }.get(own or 0, "Start it again; if it repeats, update vLLM and its native libraries")
    return Diagnosis("killed" if own == 9 else "crashed", words[0].upper() + words[1:], where, (Remedy(remedy),))


def _explain(
    chosen: _Candidate, candidates: list[_Candidate], evidence: Evidence, exit_code: int | None, where: str
) -> Diagnosis:
    cause = chosen.cause
    first = next(candidate for candidate in candidates if candidate.cause.code == cause.code)
    title = cause.words(chosen.match, evidence)
    message = _message(chosen.line.text)
    details = [message]
    details += list(
        dict.fromkeys(
            _message(other.line.text)
            for other in candidates
            if other.cause.code == "gpu-out-of-memory" and cause.code != "gpu-out-of-memory"
        )
    )
    if where:
        details.append(where)
    if exit_code is not None:
        words = exit_words(exit_code)
        details.append(f"{words[0].upper()}{words[1:]}.")
    return Diagnosis(
        code=cause.code,
        headline=_masked(f"{title}: {_sentence(message)}"),
        detail=_masked("\n".join(dict.fromkeys(detail for detail in details if detail))),
        remedies=tuple(cause.advise(chosen.match, evidence)),
        line_number=first.line.number,
    )


def _without_cause(log: list[LogLine], ready_at: int | None, exit_code: int | None, where: str) -> Diagnosis:
    ending = f"{exit_words(exit_code)}" if exit_code is not None else "exit code unknown"
    after_ready = log if ready_at is None else log[ready_at:]
    asked = next((line for line in after_ready if _ASKED_TO_STOP.search(line.text)), None)
    last = _last_error(after_ready)
    if asked is not None and (last is None or last.number > asked.number):
        return Diagnosis("stopped", "It was asked to stop and did", ending, (), asked.number)
    if signal_of(exit_code) == 15:
        return Diagnosis("stopped", "Ended by SIGTERM: somebody asked it to stop", where)
    if last is not None:
        return Diagnosis(
            code="unknown",
            headline=_masked(f"Unknown cause; the last error in the log: {_sentence(_message(last.text))}"),
            detail=_masked("\n".join(part for part in (_message(last.text), where, ending) if part)),
            remedies=(Remedy("Read the log around that line"),),
            line_number=last.number,
        )
    if ready_at is not None and exit_code is None:
        return Diagnosis("no-failure", "No failure in this log: the server had started", "", (), log[ready_at].number)
    return Diagnosis(
        code="unknown",
        headline=f"Unknown cause: no error line in the log, {ending}",
        detail=where,
        remedies=(Remedy("Start it again and watch the log; `env.VLLM_LOGGING_LEVEL=DEBUG` says more"),),
        line_number=log[-1].number if log else None,
    )


def _last_error(log: list[LogLine]) -> LogLine | None:
    """The last line that names a failure of its own; a summary of failures only where there is nothing better."""
    errors = [line for line in log if _is_error(line)]
    named = [line for line in errors if not _SUMMARY.search(line.text)]
    raised = [line for line in named if _EXCEPTION.match(line.text) or _value_error(line.text)]
    for group in (raised, named, errors):
        if group:
            return group[-1]
    return None


def _is_error(line: LogLine) -> bool:
    if _RETRIED.search(line.text) or not line.text.strip():
        return False
    if _EXCEPTION.match(line.text) or _value_error(line.text):
        return True
    return line.level in ("ERROR", "CRITICAL") and not line.text.startswith((" ", "Traceback", "^"))


def _value_error(text: str) -> bool:
    return text.startswith("  Value error, ")


def _message(text: str) -> str:
    """The message without its exception class and pydantic's wrapping."""
    text = _PYDANTIC_TAIL.sub("", text.strip().removeprefix("Value error, "))
    return _CLASS.sub("", text, count=1).strip()


def _sentence(message: str) -> str:
    """The first sentence, bounded."""
    end = message.find(". ", 40)
    sentence = message if end < 0 else message[:end]
    return sentence if len(sentence) <= _LONGEST_SENTENCE else sentence[: _LONGEST_SENTENCE - 1] + "…"


def _masked(text: str) -> str:
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
