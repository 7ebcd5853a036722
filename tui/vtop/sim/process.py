"""The life of a simulated server process: port first, then the start, serving, faults, a clean end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from vtop.errors import VtopError
from vtop.sim.machine import Machine, StartFailure, build_machine
from vtop.sim.options import Options
from vtop.sim.server import SimulatedServer
from vtop.sim.startup import GIB, StartupLog

ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
STATS_INTERVAL_S = 10.0


class QuietServer(uvicorn.Server):
    """Leaves signals to the process around it, and says when it answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Binds the port, which vLLM does before anything else.

    Raises:
        OSError: it is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def run_server(options: Options) -> int:
    """Starts, serves until SIGTERM or SIGINT, and returns the exit code."""
    log = StartupLog(options)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    log.banner()
    try:
        sock = listen(options.host, options.port)
    except OSError as error:
        log.plain("Traceback (most recent call last):")
        log.plain(f"OSError: [Errno {error.errno}] {error.strerror}")
        return 1
    with sock:
        try:
            machine = _start(options, log)
        except StartFailure as failure:
            log.failure(failure)
            return 1
        except VtopError as error:
            log.plain(str(error))
            return 2
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_Life(machine, log, sock).run())


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


def _start(options: Options, log: StartupLog) -> Machine:
    """The whole start, with the faults that happen in it."""
    machine = build_machine_in_phases(options, log)
    gib = machine.weights_bytes / GIB
    if options.fault == "gpu-busy":
        total = machine.card.memory_bytes / GIB
        wanted = total * options.gpu_memory_utilization
        raise StartFailure(
            "ValueError",
            f"Free memory on device cuda:0 ({total * 0.18:.2f}/{total:.2f} GiB) on startup is less than desired GPU "
            f"memory utilization ({options.gpu_memory_utilization}, {wanted:.2f} GiB). Decrease GPU memory utilization "
            "or reduce GPU memory used by other processes.",
            "weights",
        )
    if options.fault in {"die-loading", "oom"}:
        log.weights(gib, stop_at=0.5)
        if options.fault == "oom":
            total = machine.card.memory_bytes / GIB
            raise StartFailure(
                "torch.OutOfMemoryError",
                f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {total:.2f} GiB of "
                f"which 1.35 GiB is free. Process 4711 has {total * 0.4:.2f} GiB memory in use.",
                "weights",
            )
        raise StartFailure(
            "safetensors_rust.SafetensorError",
            "Error while deserializing header: incomplete metadata, file not fully covered",
            "weights",
        )
    log.weights(gib, hang=options.fault == "hang")
    log.cache_and_graphs(machine)
    return machine


def build_machine_in_phases(options: Options, log: StartupLog) -> Machine:
    """Builds the machine; a failure comes in the phase in which vLLM would notice it."""
    try:
        machine = build_machine(options)
    except StartFailure as failure:
        if failure.phase != "config":
            log.pass_time(0.15)
            log.core("core.py:133", f"Initializing a V1 LLM engine (v0.33.0) with config: model='{options.model}'")
            if failure.phase == "kv-cache":
                log.weights(1.0)
        raise
    kind = machine.setup.shape.name.lower()
    architecture = next((name for key, name in ARCHITECTURES.items() if key in kind), "LlamaForCausalLM")
    log.config(machine, architecture)
    return machine


class _Life:
    """Serving, and what goes wrong while serving."""

    def __init__(self, machine: Machine, log: StartupLog, sock: socket.socket) -> None:
        self._options = machine.options
        self._log = log
        self._sock = sock
        self._server = SimulatedServer(machine)
        config = uvicorn.Config(
            self._server.app(), lifespan="off", access_log=False, log_config=None, log_level="critical", ws="none",
            timeout_graceful_shutdown=3,
        )  # fmt: skip
        self._uvicorn = QuietServer(config)
        self._exit_code = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> int:
        """Serves until told to end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end_asked)
        self._tasks += [asyncio.create_task(engine.run()) for engine in self._server.engines]
        for task in self._tasks:
            task.add_done_callback(self._engine_ended)
        self._tasks.append(asyncio.create_task(self._stats()))
        self._arm_fault()
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._sock]))
        await self._uvicorn.ready.wait()
        self._log.serving()
        await serving
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._log.plain("INFO:     Application shutdown complete.")
        return self._exit_code

    def _end_asked(self) -> None:
        if self._options.fault == "ignore-term" and self._server.active:
            self._log.plain("INFO:     Waiting for connections to close. (CTRL+C to force quit)")
            return
        self._tasks.append(asyncio.create_task(self._shut_down()))

    async def _shut_down(self) -> None:
        if self._server.closing:
            return
        log = self._log
        mode = "drain" if self._options.shutdown_timeout else "abort"
        log.api("launcher.py:254", "[shutdown] API server: shutdown triggered")
        log.api(
            "launcher.py:270",
            f"[shutdown] API server: stopping engine client mode={mode} timeout={self._options.shutdown_timeout:g}s",
        )
        self._server.closing = True
        deadline = asyncio.get_running_loop().time() + self._options.shutdown_timeout
        while self._server.active and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for engine in self._server.engines:
            engine.abort_all()
        log.plain("INFO:     Shutting down")
        log.plain("INFO:     Waiting for application shutdown.")
        self._uvicorn.should_exit = True

    def _engine_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        self._log.core("core.py:1348", f"EngineCore encountered a fatal error.\n{error!r}", "ERROR")
        self._exit_code = 1
        self._uvicorn.should_exit = True

    async def _stats(self) -> None:
        """The line that vLLM writes every ten seconds while something happens."""
        last = [(0, 0)] * len(self._server.engines)
        while True:
            await asyncio.sleep(STATS_INTERVAL_S)
            for index, engine in enumerate(self._server.engines):
                metrics = engine.metrics
                now = (metrics.prompt_tokens, metrics.generation_tokens)
                if now != last[index] or metrics.running:
                    prompt, generated = (
                        max(0, value - before) / STATS_INTERVAL_S
                        for value, before in zip(now, last[index], strict=True)
                    )
                    hits = metrics.prefix_hits / metrics.prefix_queries if metrics.prefix_queries else 0.0
                    self._log.api(
                        "loggers.py:310",
                        f"Engine {index:03d}: Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: "
                        f"{generated:.1f} tokens/s, Running: {metrics.running} reqs, Waiting: "
                        f"{metrics.waiting_capacity + metrics.waiting_deferred} reqs, GPU KV cache usage: "
                        f"{metrics.kv_usage * 100:.1f}%, Prefix cache hit rate: {hits * 100:.1f}%",
                    )
                last[index] = now

    # --- faults while serving -------------------------------------------------------------------------------------

    def _arm_fault(self) -> None:
        fault = self._options.fault
        if fault == "hang-serving":
            for engine in self._server.engines:
                engine.frozen = True
        elif fault == "first-request":
            self._server.on_first_request = self._die_on_request
        elif fault in {"restart", "exit-zero", "crash"}:
            self._tasks.append(asyncio.create_task(self._fault_later(fault)))

    def _die_on_request(self) -> None:
        self._log.core(
            "multiproc_executor.py:301", "Worker proc VllmWorker-0 died unexpectedly, shutting down executor.", "ERROR"
        )
        self._log.core("core.py:1348", "EngineCore encountered a fatal error.", "ERROR")
        os._exit(1)

    async def _fault_later(self, fault: str) -> None:
        await asyncio.sleep(self._options.fault_after_s / self._options.speed)
        server = self._server
        if fault == "crash":
            self._log.core("core.py:1348", "EngineCore encountered a fatal error.", "ERROR")
            self._log.core(
                "core.py:1348", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.", "ERROR"
            )
            os._exit(1)
        server.healthy = False
        for engine in server.engines:
            engine.abort_all("error")
        if fault == "exit-zero":
            self._log.api("core_client.py:702", "[shutdown] MPClient: engine core exited unexpectedly", "ERROR")
            self._log.api(
                "async_llm.py:741",
                "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
                "ERROR",
            )
            await asyncio.sleep(1.0 / self._options.speed)
            self._uvicorn.should_exit = True
            return
        await asyncio.sleep(1.0 / self._options.speed)
        for engine in server.engines:
            engine.reset()
        server.healthy = True


def main(options: Options) -> int:
    """Runs whichever role was asked for and returns the exit code."""
    if options.role == "router":
        from vtop.sim.router import run_router

        return run_router(options)
    return run_server(options)
