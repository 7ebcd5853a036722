"""Start-up of a vLLM server, read from its log: which phase, how far, and the numbers that the log mentions.

The wordings are those of vLLM 0.6 to 0.33; each rule notes the versions where they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from vtop.clock import Clock
from vtop.units import elapsed, percent
from vtop.vllm.lifecycle import StartProgress
from vtop.vllm.logtext import parse, redrawn

PHASES = (
    "launch",
    "config",
    "engine",
    "nccl",
    "download",
    "weights",
    "compile",
    "profile",
    "kv-cache",
    "graphs",
    "warm-up",
    "ready",
)
"""In the order in which a start goes through them; most starts skip some."""

_WORDS: Mapping[str, str] = {
    "launch": "starting Python",
    "config": "reading the configuration",
    "engine": "starting the engine",
    "nccl": "connecting the GPUs (NCCL)",
    "download": "downloading weights",
    "weights": "loading weights",
    "compile": "compiling (torch.compile)",
    "profile": "measuring memory",
    "kv-cache": "allocating the KV cache",
    "graphs": "capturing CUDA graphs",
    "warm-up": "warming up",
    "ready": "ready",
}

_PATIENCE_S: Mapping[str, float] = {
    "launch": 300.0,
    "config": 300.0,
    "engine": 300.0,
    "nccl": 180.0,
    "download": 900.0,
    "weights": 1200.0,
    "compile": 3600.0,
    "profile": 900.0,
    "kv-cache": 600.0,
    "graphs": 900.0,
    "warm-up": 600.0,
}
"""Seconds without any log line after which a phase counts as stuck. Compiling is silent for half an hour at times."""

_HINTS: Mapping[str, str] = {
    "nccl": "peer-to-peer between the GPUs may be dead-locked: try env.NCCL_P2P_DISABLE=1 (env.NCCL_DEBUG=INFO)",
    "download": "check the network and the space on disk",
    "weights": "slow storage, or host memory is swapping",
}


@dataclass(slots=True)
class _Bars:
    """Parallel download bars: file -> (done, total) bytes."""

    files: dict[str, tuple[float, float]] = field(default_factory=dict)

    def share(self) -> float | None:
        total = sum(size for _, size in self.files.values())
        return min(1.0, sum(done for done, _ in self.files.values()) / total) if total else None


Facts = dict[str, str | float]
_Rule = tuple[re.Pattern[str], str | None, Callable[[re.Match[str], Facts], None] | None]


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _keep(name: str, group: int = 1) -> Callable[[re.Match[str], Facts], None]:
    def apply(match: re.Match[str], facts: Facts) -> None:
        facts[name] = _number(match[group])

    return apply


def _keep_text(name: str) -> Callable[[re.Match[str], Facts], None]:
    def apply(match: re.Match[str], facts: Facts) -> None:
        facts[name] = match[1].strip()

    return apply


def _keep_largest(name: str) -> Callable[[re.Match[str], Facts], None]:
    """Ranks report one after the other; the fullest GPU is the one that counts."""

    def apply(match: re.Match[str], facts: Facts) -> None:
        known = facts.get(name)
        value = _number(match[1])
        facts[name] = max(value, known) if isinstance(known, float) else value

    return apply


def _keep_smallest(name: str) -> Callable[[re.Match[str], Facts], None]:
    def apply(match: re.Match[str], facts: Facts) -> None:
        known = facts.get(name)
        value = _number(match[1])
        facts[name] = min(value, known) if isinstance(known, float) else value

    return apply


_ENGINE_CONFIG = {
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "prefix_caching",
    "enforce_eager": "enforce_eager",
}
"""Keys of the engine's config line (all versions) -> names of facts."""


def _engine_config(match: re.Match[str], facts: Facts) -> None:
    if match[1]:
        facts["version"] = match[1]
    for key, name in _ENGINE_CONFIG.items():
        if found := re.search(rf"\b{key}=([\w.]+)", match[2]):
            text = found[1].removeprefix("torch.")
            if text != "None":
                facts[name] = float(text) if text.isdigit() else text


def _model_loading(match: re.Match[str], facts: Facts) -> None:
    _keep_largest("weights_gib")(match, facts)
    if match[2]:
        facts["weights_load_seconds"] = _number(match[2])


def _init_engine(match: re.Match[str], facts: Facts) -> None:
    facts["init_seconds"] = _number(match[1])
    if match[2]:
        facts["compile_seconds"] = _number(match[2])


def _concurrency(match: re.Match[str], facts: Facts) -> None:
    facts["max_model_len"] = _number(match[1])
    facts["max_concurrency"] = _number(match[2])


def _memory_profile(match: re.Match[str], facts: Facts) -> None:
    facts["gpu_memory_gib"] = _number(match[1])
    facts["gpu_memory_utilization"] = _number(match[2])


_N = r"([\d,]+(?:\.\d+)?)"
_RULES: tuple[_Rule, ...] = tuple(
    (re.compile(pattern), phase, fact)
    for pattern, phase, fact in (
        (r"vLLM API server version (\S+)", "config", _keep_text("version")),  # up to 0.24
        (r"  version (\d\S*)\s*$", "config", _keep_text("version")),  # the logo, 0.18 on
        (r"  model   (\S.*)$", "config", _keep_text("model")),
        (r"^(?:non-default args: |args: Namespace\()", "config", None),
        (r"Automatically detected platform (\w+)", "config", _keep_text("platform")),
        (r"Resolved architecture: (\S+)", "config", _keep_text("architecture")),  # 0.10.2 on
        (rf"Using max model len {_N}", "config", _keep("max_model_len")),  # 0.9.2 on
        (rf"Chunked prefill is enabled with max_num_batched_tokens={_N}", "config", _keep("max_num_batched_tokens")),
        (rf"max_num_scheduled_tokens is set to {_N}", None, _keep("max_num_scheduled_tokens")),
        (r"^Initializing an? (?:V\d )?LLM engine(?: \(v([^)]+)\))? with config: (.*)", "engine", _engine_config),
        (r"^Started engine process with PID \d+", "engine", None),  # V0, up to 0.10.2
        (r"^Waiting for \d+ local, \d+ remote core engine proc", "engine", None),
        (r"^Defaulting to use \w+ for distributed inference", "engine", None),
        (r"^(?:Found nccl from library|vLLM is using nccl==)", "nccl", None),
        (r"Using (\w+(?: \w+)?) (?:attention )?backend", None, _keep_text("attention_backend")),
        (r"^Time spent downloading weights for .*: ([\d.]+) seconds", "download", _keep("download_seconds")),
        (r"^(?:Starting to load model|Loading weights on|Loading drafter model)", "weights", None),
        (r"Checkpoint size: ([\d.]+) GiB", "weights", _keep("checkpoint_gib")),  # 0.20 on
        (r"^Loading weights took ([\d.]+) seconds", "weights", None),
        (rf"^Loading model weights took {_N} (?:GB|GiB)()", "weights", _model_loading),  # V0, GB meaning GiB
        # GB in 0.8.0 to 0.8.4, GiB after, "GiB memory" from 0.11.1; the value was GiB all along
        (rf"^Model loading took {_N} Gi?B(?: memory)? and {_N} seconds", "weights", _model_loading),
        (r"^Using cache directory: .* for vLLM's torch\.compile", "compile", None),
        (r"^Dynamo bytecode transform time: ", "compile", None),
        (
            r"^(?:Compiling a graph for|Cache the graph|Start compiling function|Directly load the compiled)",
            "compile",
            None,
        ),
        (rf"^torch\.compile takes {_N} s in total", "compile", _keep("compile_seconds")),  # up to 0.17
        (r"^(?:Memory profiling takes|Initial profiling/warmup run took|Profiling CUDA graph memory)", "profile", None),
        (rf"total_gpu_memory \({_N}GiB\) x gpu_memory_utilization \({_N}\)", "profile", _memory_profile),
        (rf"^Available KV cache memory: {_N} GiB", "kv-cache", _keep_smallest("kv_cache_gib")),
        (rf"^Estimated CUDA graph memory: {_N} GiB", None, _keep("graph_memory_estimate_gib")),
        (rf"^Explicitly set \({_N}/{_N}\) GiB for KV cache", "kv-cache", _keep("kv_cache_gib")),  # CPU builds
        (rf"^# (?:GPU|cuda|CPU) blocks: {_N}", "kv-cache", _keep("kv_cache_blocks")),  # V0
        (rf"(?:GPU|CPU|\w+) KV cache size: {_N} tokens", "kv-cache", _keep_smallest("kv_cache_tokens")),
        (rf"Maximum concurrency for {_N} tokens per request: {_N}x", "kv-cache", _concurrency),
        (r"^Capturing (?:the model for CUDA graphs|cudagraphs for decoding)", "graphs", None),  # V0
        (rf"^Graph capturing finished in {_N} secs", "graphs", _keep("graph_capture_seconds")),
        (rf"^init engine \(.*\) took {_N} s(?:econds)?(?:.*\(compilation: {_N} s)?", "warm-up", _init_engine),
        (r"^Starting vLLM (?:API )?server(?: \d+)? on (\S+)", "warm-up", _keep_text("listens_on")),
        (r"^(?:Available routes are|Started server process \[|Waiting for application startup)", "warm-up", None),
        (r"^(?:Application startup complete|Uvicorn running on)", "warm-up", None),
    )
)

_SHARDS = re.compile(r"^((?:Multi-thread(?:ed)? )?[Ll]oading [^:]*):\s+\d+% Completed \| (\d+)/(\d+)")
_GRAPHS = re.compile(r"^Capturing (?:CUDA graph shapes|CUDA graphs?)(?: \(([^)]*)\))?:\s+\d+%\|[^|]*\| *(\d+)/(\d+)")
_FETCH = re.compile(r"^(?:Fetching (\d+) files|Downloading shards):\s+\d+%\|[^|]*\| *(\d+)/(\d+)")
_FILE_BAR = re.compile(r"^(\S+?\.(?:safetensors|bin|pt|pth|gguf)):\s+\d+%\|[^|]*\| *([\d.]+[kMGT]?)/([\d.]+[kMGT]?)B? ")
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _bytes(text: str) -> float:
    return float(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else float(text)


class StartupTracker:
    """Follows one start-up, line by line; phases only go forward, since ranks repeat each other's lines late."""

    def __init__(self, clock: Clock, expected_s: float | None = None) -> None:
        """Starts the clock.

        Args:
            clock: the source of time.
            expected_s: how long this start took last time.
        """
        self._clock = clock
        self._expected_s = expected_s
        self._started_s = self._phase_since_s = self._last_line_s = clock.monotonic()
        self._phase = "launch"
        self._share: float | None = None
        self._words = ""
        self._done: list[tuple[str, float]] = []
        self._facts: Facts = {}
        self._downloads = _Bars()

    @property
    def facts(self) -> Mapping[str, str | float]:
        """What the log has said so far.

        `version`, `model`, `architecture`, `max_model_len`, `max_num_batched_tokens`, `weights_gib` (a GPU),
        `kv_cache_gib`, `kv_cache_tokens`, `max_concurrency`, `init_seconds`, ...
        """
        return MappingProxyType(self._facts)

    def feed(self, line: str) -> None:
        """Takes one raw line, with whatever bars were redrawn in it."""
        self._last_line_s = self._clock.monotonic()
        for state in redrawn(line):
            text = parse(state).text
            if not self._read_bar(text.lstrip()):
                self._read_message(text)

    def feed_unfinished(self, line: str) -> None:
        """Takes a line that has no end yet: a bar redraws itself in one line for as long as a download lasts."""
        self._last_line_s = self._clock.monotonic()
        states = redrawn(line)
        # A bar that is half written shows half a number.
        if states and states[-1].rstrip().endswith("]"):
            self._read_bar(parse(states[-1]).text.lstrip())

    def mark_ready(self) -> None:
        """The server has really answered; no log line proves that."""
        self._enter("ready")

    def progress(self) -> StartProgress:
        """Where the start stands now."""
        now = self._clock.monotonic()
        text = self._words or _WORDS[self._phase]
        if self._share is not None:
            text += f" {percent(self._share)}"
        silent_s = now - self._last_line_s
        return StartProgress(
            phase=self._phase,
            text=text,
            share=self._share,
            phase_elapsed_s=now - self._phase_since_s,
            elapsed_s=now - self._started_s,
            expected_s=self._expected_s,
            silent_s=silent_s,
            done=tuple(self._done),
            stuck=self._stuck(silent_s),
        )

    def _stuck(self, silent_s: float) -> str:
        if silent_s < _PATIENCE_S.get(self._phase, float("inf")):
            return ""
        hint = _HINTS.get(self._phase)
        return f"no log line for {elapsed(silent_s)} while {_WORDS[self._phase]}" + (f"; {hint}" if hint else "")

    def _enter(self, phase: str) -> bool:
        """Moves to a phase; False where it is behind us already."""
        if PHASES.index(phase) < PHASES.index(self._phase):
            return False
        if phase != self._phase:
            now = self._clock.monotonic()
            self._done.append((self._phase, now - self._phase_since_s))
            self._phase, self._phase_since_s = phase, now
            self._share, self._words = None, ""
        return True

    def _read_bar(self, text: str) -> bool:
        if shards := _SHARDS.match(text):
            self._advance("weights", int(shards[2]), int(shards[3]))
        elif graphs := _GRAPHS.match(text):
            words = f"capturing CUDA graphs ({graphs[1]})" if graphs[1] else ""
            self._advance("graphs", int(graphs[2]), int(graphs[3]), words)
        elif fetch := _FETCH.match(text):
            if self._downloads.share() is None:
                self._advance("download", int(fetch[2]), int(fetch[3]))
        elif bar := _FILE_BAR.match(text):
            self._downloads.files[bar[1]] = _bytes(bar[2]), _bytes(bar[3])
            if self._enter("download"):
                self._share = self._downloads.share()
        else:
            return False
        return True

    def _advance(self, phase: str, done: int, total: int, words: str = "") -> None:
        if self._enter(phase) and total:
            self._share, self._words = done / total, words
            if phase == "weights":
                self._facts["shards"] = f"{done}/{total}"

    def _read_message(self, text: str) -> None:
        for pattern, phase, fact in _RULES:
            if found := pattern.search(text):
                if phase is not None:
                    self._enter(phase)
                if fact is not None:
                    fact(found, self._facts)
        if text.startswith(("Application startup complete", "Uvicorn running on")) and self._phase == "warm-up":
            self._words = "listening; waiting for a first answer"
