"""A small stand-in for `vllm serve`: real process, real sockets, engine children, and every bad habit that vLLM has.

Engines and workers are real children named as vLLM names them (by their argument vector), with their own process group.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time

ENGINE = """
import os, signal, subprocess, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if sys.argv[2] == "worker":
    words = ["VLLM::Worker_TP0", "-c", sys.argv[3], sys.argv[1], "", "", ""]
    subprocess.Popen(words, executable=sys.argv[4])
time.sleep(600)
"""


def say(text: str) -> None:
    print(f"INFO {time.strftime('%m-%d %H:%M:%S')} [core.py:1] {text}", flush=True)


def spawn_engine(options: argparse.Namespace) -> subprocess.Popen[bytes]:
    kind = "worker" if options.worker else ""
    words = ["VLLM::EngineCore", "-c", ENGINE, options.engine, kind, ENGINE, sys.executable]
    return subprocess.Popen(words, executable=sys.executable, process_group=0)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    options: argparse.Namespace
    streams: int = 0
    broken = False
    hung = False
    prompt_tokens = 0
    generation_tokens = 0
    first_prompt = ""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        return

    def reply(self, status: int, body: object = None) -> None:
        content = b"" if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def allowed(self) -> bool:
        key = os.environ.get("VLLM_API_KEY")
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.reply(401, {"error": "Unauthorized"})
            return False
        return True

    def do_GET(self) -> None:
        options = self.server.options
        if self.server.hung:
            time.sleep(600)
        if self.path == "/health":
            self.reply(503 if self.server.broken else 200)
        elif self.path == "/metrics":
            page = f'vllm:prompt_tokens_total{{engine="0"}} {self.server.prompt_tokens}\n'
            page += f'vllm:generation_tokens_total{{engine="0"}} {self.server.generation_tokens}\n'
            self.reply(200, page.encode())
        elif self.path == "/v1/models" and self.allowed():
            self.reply(200, {"data": [{"id": options.model, "max_model_len": options.max_model_len}]})
        elif self.path == "/hang":
            self.server.hung = True
            self.reply(200)
        elif self.path == "/shutdown":
            self.reply(200)
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.path == "/first-prompt":
            self.reply(200, self.server.first_prompt.encode())
        elif self.path.startswith("/stream"):
            chunks = int(self.path.partition("?")[2] or 10**9)
            self.server.streams += 1
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(chunks):
                    self.wfile.write(b"data: {}\n\n")
                    self.wfile.flush()
                    time.sleep(0.05)
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:
                pass
            finally:
                self.close_connection = True
                self.server.streams -= 1

    def do_POST(self) -> None:
        options = self.server.options
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        if options.fault == "die-on-request":
            print("RuntimeError: worker died", file=sys.stderr, flush=True)
            os._exit(0)
        time.sleep(options.answer_s)
        self.server.first_prompt = self.server.first_prompt or body["prompt"]
        self.server.prompt_tokens += len(body["prompt"].split())
        self.server.generation_tokens += 4
        for url in options.forward:
            forward(url, body)
        self.reply(200, {"choices": [{"text": "it is so", "finish_reason": "length"}]})


def forward(url: str, body: object) -> None:
    import urllib.request

    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), method="POST")
    urllib.request.urlopen(request, timeout=10).read()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--boot", type=float, default=0.1)
    parser.add_argument("--answer-s", type=float, default=0.0)
    parser.add_argument("--engine", choices=["", "normal", "stubborn"], default="normal")
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--forward", action="append", default=[])
    parser.add_argument("--drain", type=float, default=0.0, help="seconds that running streams get after a SIGTERM")
    parser.add_argument("--chatty", action="store_true")
    parser.add_argument("--flood", type=int, default=0, help="bytes of log a second")
    parser.add_argument(
        "--fault",
        default="",
        choices=[
            "", "die-loading", "exit-0-loading", "no-free-memory", "leave-engine", "hang-loading", "silent-port",
            "die-on-request",
        ],
    )  # fmt: skip
    options = parser.parse_args()
    engine = spawn_engine(options) if options.engine else None
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    say("Initializing a V1 LLM engine (v0.32.0) with config: model='tiny'")
    say("Starting to load model tiny...")
    if options.fault == "leave-engine":
        print("TimeoutError: Timed out waiting for engine core processes to start.", file=sys.stderr, flush=True)
        os._exit(1)
    if options.fault == "hang-loading":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("vLLM is using nccl==2.20.5")
        time.sleep(600)
    end = time.monotonic() + options.boot
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))
        if options.chatty:
            say("still loading")
    if options.fault in ("die-loading", "exit-0-loading", "no-free-memory"):
        text = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
        if options.fault == "no-free-memory":
            text = (
                "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired GPU memory "
                "utilization (0.95, 45.01 GiB). Decrease GPU memory utilization or reduce GPU memory used by others."
            )
        print(text, file=sys.stderr, flush=True)
        if engine is not None:
            engine.kill()
        os._exit(0 if options.fault == "exit-0-loading" else 1)
    if options.fault == "silent-port":
        time.sleep(600)
    server = Server(("127.0.0.1", options.port), Handler)
    server.options = options
    say("Loading weights took 0.10 seconds")
    say("GPU KV cache size: 12,345 tokens")
    print("INFO:     Application startup complete.", file=sys.stderr, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    line = "x" * 999 + "\n"
    while not stopping.is_set():
        if options.flood:
            sys.stdout.write(line * max(1, options.flood // 20_000))
            sys.stdout.flush()
        if engine is not None and engine.poll() is not None:
            # What vLLM does: unhealthy for a while, then an exit code of 0.
            server.broken = True
            print("EngineDeadError: EngineCore encountered an issue.", file=sys.stderr, flush=True)
            time.sleep(3.0)
            os._exit(0)
        stopping.wait(0.05)
    say("API server: shutdown triggered")
    end = time.monotonic() + options.drain
    while server.streams and time.monotonic() < end:
        time.sleep(0.05)
    if engine is not None:
        engine.terminate() if options.engine == "normal" else None
        engine.wait(2) if options.engine == "normal" else None
    while server.streams:
        time.sleep(0.05)
    os._exit(0)


if __name__ == "__main__":
    main()
