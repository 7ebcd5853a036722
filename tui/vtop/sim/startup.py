"""The start-up log of the simulated server: vLLM 0.33's phases and wording, over a stated number of seconds."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from vtop.sim.machine import Machine, StartFailure
from vtop.sim.options import Options

GIB = 2.0**30


class StartupLog:
    """Writes lines as vLLM's processes do and lets the time of each phase pass."""

    def __init__(self, options: Options, stream: TextIO | None = None) -> None:
        self._options = options
        self._stream = stream or sys.stdout
        self._begun = time.monotonic()
        self._pid = os.getpid()

    def api(self, source: str, text: str, level: str = "INFO") -> None:
        """A line of the API server."""
        self._line("APIServer", source, text, level)

    def core(self, source: str, text: str, level: str = "INFO") -> None:
        """A line of the engine."""
        self._line("EngineCore", source, text, level)

    def plain(self, text: str) -> None:
        """A line without vLLM's prefix (uvicorn, tqdm, tracebacks)."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def _line(self, process: str, source: str, text: str, level: str) -> None:
        stamp = time.strftime("%m-%d %H:%M:%S")
        prefix = f"({process} pid={self._pid}) {level} {stamp} [{source}] "
        self.plain("\n".join(prefix + part for part in text.split("\n")))

    def pass_time(self, share: float) -> None:
        """Lets a share of the whole start pass."""
        time.sleep(max(0.0, self._options.startup_s * share / self._options.speed))

    def elapsed_s(self) -> float:
        """Since the process began."""
        return time.monotonic() - self._begun

    def banner(self) -> None:
        """The first lines."""
        options = self._options
        self.api("api_utils.py:347", "\nSIMULATED server of vtop: no GPU is used and no model is loaded.")
        self.api(
            "api_utils.py:347",
            f" █▄█▀ █     █     █     █  version 0.33.0\n  ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀  model   {options.model}",
        )
        changed = {"model": options.model, "host": options.host, "port": options.port}
        if os.environ.get("VLLM_API_KEY"):
            changed["api_key"] = "***"
        self.api("api_utils.py:286", f"non-default args: {changed}")
        self.pass_time(0.15)

    def config(self, machine: Machine, architecture: str) -> None:
        """Model and scheduler configuration."""
        limits = machine.limits
        self.api("model.py:733", f"Resolved architecture: {architecture}")
        self.api("model.py:2152", f"Using max model len {limits.max_model_len}")
        if limits.chunked_prefill:
            self.api(
                "scheduler.py:240",
                f"Chunked prefill is enabled with max_num_batched_tokens={limits.max_num_batched_tokens}.",
            )
        self.pass_time(0.05)
        self.core(
            "core.py:133",
            f"Initializing a V1 LLM engine (v0.33.0) with config: model='{self._options.model}', "
            f"tensor_parallel_size={self._options.tensor_parallel_size}, "
            f"quantization={machine.setup.quantization.name}, simulated_gpu='{machine.card.name}'",
        )
        self.pass_time(0.1)

    def weights(self, weights_gib: float, stop_at: float = 1.0, hang: bool = False) -> None:
        """Loading; `stop_at` below 1 ends in the middle."""
        began = time.monotonic()
        self.core("gpu_model_runner.py:4812", f"Starting to load model {self._options.model}...")
        shards = max(2, min(8, round(weights_gib / 4)))
        for done in range(shards + 1):
            share = done / shards
            if share > stop_at:
                break
            self.plain(
                f"Loading safetensors checkpoint shards: {share * 100:3.0f}% Completed | {done}/{shards} "
                f"[00:0{done}<00:0{shards - done},  1.00it/s]"
            )
            if done < shards:
                self.pass_time(0.3 / shards)
            if hang and share >= 0.5:
                while True:
                    time.sleep(3600)
        if stop_at >= 1.0:
            seconds = time.monotonic() - began
            self.core("default_loader.py:391", f"Loading weights took {seconds:.2f} seconds")
            self.core(
                "gpu_model_runner.py:4907",
                f"Model loading took {weights_gib:.2f} GiB memory and {seconds:.6f} seconds",
            )

    def cache_and_graphs(self, machine: Machine) -> None:
        """Compilation, profiling, the KV cache, CUDA graphs."""
        began = time.monotonic()
        eager = machine.options.enforce_eager
        if not eager:
            self.core("backends.py:1128", f"Dynamo bytecode transform time: {self._options.startup_s * 0.05:.2f} s")
            self.pass_time(0.1)
            self.core(
                "backends.py:391", f"Compiling a graph for compile range (1, {machine.limits.max_num_batched_tokens}) "
                f"takes {self._options.startup_s * 0.05:.2f} s",
            )  # fmt: skip
        self.core("gpu_worker.py:456", f"Available KV cache memory: {machine.kv_bytes / GIB:.2f} GiB")
        length = machine.limits.max_model_len
        self.core(
            "kv_cache_utils.py:2327",
            f"GPU KV cache size: {machine.kv_tokens:,} tokens, Maximum concurrency for {length:,} tokens per request: "
            f"{machine.kv_tokens / length:.2f}x",
        )
        if not eager:
            for done in (0, 25, 50, 75, 100):
                self.plain(
                    f"Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): {done:3d}%|{'█' * (done // 10):<10}| "
                    f"{done // 5}/20 [00:00<00:00, 40.00it/s]"
                )
                self.pass_time(0.04)
            self.core("gpu_model_runner.py:5908", "Graph capturing finished in 1 secs, took 0.62 GiB")
        seconds = time.monotonic() - began
        self.core("core.py:402", f"init engine (profile, create kv cache, warmup model) took {seconds:.2f} s")
        self.pass_time(0.1)

    def serving(self) -> None:
        """The last lines before requests are answered."""
        options = self._options
        self.api("entry.py:136", "Supported tasks: ['generate']")
        self.api("entry.py:140", f"Starting vLLM server on http://{options.host}:{options.port}")
        self.api("launcher.py:186", "Available routes are:")
        for path, method in (("/health", "GET"), ("/metrics", "GET"), ("/v1/models", "GET"),
                             ("/v1/chat/completions", "POST"), ("/v1/completions", "POST")):  # fmt: skip
            self.api("launcher.py:195", f"Route: {path}, Methods: {method}")
        self.plain(f"INFO:     Started server process [{self._pid}]")
        self.plain("INFO:     Waiting for application startup.")
        self.plain("INFO:     Application startup complete.")

    def failure(self, failure: StartFailure) -> None:
        """A traceback as vLLM prints it, the engine's first and the API server's last."""
        text = str(failure)
        if failure.phase == "config":
            self.plain("Traceback (most recent call last):")
            self.plain('  File "/opt/venv/bin/vllm", line 8, in <module>\n    sys.exit(main())')
            if failure.kind == "ValueError":
                self.plain("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig")
                self.plain(
                    f"  Value error, {text} [type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]"
                )
            else:
                self.plain(f"{failure.kind}: {text}")
            return
        error = [
            "EngineCore failed to start.",
            "Traceback (most recent call last):",
            '  File "/opt/venv/lib/python3.11/site-packages/vllm/v1/engine/core.py", line 1321, in run_engine_core',
            "    engine_core = EngineCoreProc(*args, **kwargs)",
            f"{failure.kind}: {text}",
        ]
        for line in error:
            self.core("core.py:1348", line, "ERROR")
        self.plain("Traceback (most recent call last):")
        self.plain('  File "/opt/venv/bin/vllm", line 8, in <module>\n    sys.exit(main())')
        self.plain("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")
