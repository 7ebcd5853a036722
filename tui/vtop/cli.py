"""The `vtop` command: reads the words, then imports only what the verb needs."""

from __future__ import annotations

import argparse
import importlib
import io
import math
import os
import sys
from collections.abc import Callable, Sequence

from vtop import __version__
from vtop.errors import VtopError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors say what to do next."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Prints the error and where help is, and exits with 2."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n  See `{self.prog} --help`.\n")


def _positive(kind: Callable[[str], float], *, endless: bool = False) -> Callable[[str], float]:
    def convert(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
        if value == math.inf and not endless:
            raise argparse.ArgumentTypeError(f"must be finite, not {text}")
        return value

    convert.__name__ = kind.__name__
    return convert


def _add_target(parser: argparse.ArgumentParser) -> None:
    """The server that a verb speaks to."""
    parser.add_argument("--server", metavar="NAME", help="a server that vtop knows, by name")
    parser.add_argument("--url", metavar="URL", help="any OpenAI-compatible server, such as http://127.0.0.1:8000")
    parser.add_argument("--model", metavar="NAME", help="served model name (default: the first that the server lists)")
    parser.add_argument(
        "--api-key", metavar="REF", help="where the key is: env:NAME or file:PATH, never the key itself"
    )
    parser.add_argument("--ca-file", metavar="PEM", help="certificate authority for https servers")


def _add_watch(parser: argparse.ArgumentParser, nested: bool = False) -> None:
    """What to watch and how; nested under a verb it must not undo what stood before the verb."""
    if nested:
        parser.argument_default = argparse.SUPPRESS
    urls: object = argparse.SUPPRESS if nested else []
    parser.add_argument(
        "--url", action="append", default=urls, metavar="URL", help="also watch this server (repeatable)"
    )
    parser.add_argument(
        "--api-key",
        action="append",
        metavar="REF",
        help="key of those servers: env:NAME or file:PATH; once for all, or once for each --url in their order",
    )
    parser.add_argument("--ca-file", metavar="PEM", help="certificate authority for https servers")
    parser.add_argument("--dcgm-url", metavar="URL", help="an existing dcgm-exporter, for measured DRAM bandwidth")
    parser.add_argument("--peak-gbs", type=_positive(float), metavar="GB/S", help="peak DRAM bandwidth, if unknown")
    parser.add_argument("--window", type=_positive(float), metavar="S", help="window of rates and percentiles (10)")
    parser.add_argument("--interval", type=_positive(float), metavar="S", help="seconds between readings (1)")


def _add_screen(parser: argparse.ArgumentParser) -> None:
    """How the screen behaves."""
    parser.add_argument("--readonly", action="store_true", help="watch only; nothing can be started or stopped")
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    parser.add_argument("--ascii", action="store_true", help="draw without braille and block characters")
    parser.add_argument("--record", metavar="FILE", help="record everything that is shown")


def _add_simulation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sim", action="store_true", help="simulate the server and the GPU (marked SIMULATED)")
    parser.add_argument("--gpu", metavar="NAME", help='the simulated card, such as "RTX 4090" or "H100"')


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the preset (repeatable)"
    )
    parser.add_argument(
        "--vllm", metavar="PATH", help="the vLLM to use: an environment, its python, or its vllm command"
    )


def _add_load_shape(parser: argparse.ArgumentParser) -> None:
    """How much, how fast, for how long."""
    parser.add_argument("-c", "--concurrency", type=int, metavar="N", help="requests in flight at once (closed loop)")
    parser.add_argument("-n", "--requests", type=int, metavar="N", help="requests to send")
    parser.add_argument(
        "--rate", type=_positive(float, endless=True), metavar="R", help="requests a second (open loop)"
    )
    parser.add_argument(
        "--burstiness",
        type=_positive(float, endless=True),
        metavar="K",
        help="gamma shape of arrivals: 1 is Poisson, inf a constant rate",
    )
    parser.add_argument("--ramp", type=_positive(float), metavar="S", help="grow to full load over S seconds")
    parser.add_argument("--arrival", choices=["burst"], help="burst: every request at once")
    parser.add_argument("--choices", type=int, metavar="N", help="answers a request (n of the API)")
    parser.add_argument("--duration", type=_positive(float), metavar="S", help="seconds to run, instead of -n")
    parser.add_argument("--max-tokens", type=int, metavar="T", help="output tokens a request")
    parser.add_argument("--prompt-tokens", type=int, metavar="T", help="prompt tokens a request")
    parser.add_argument("--prefix-tokens", type=int, metavar="T", help="shared tokens a request (workload prefix)")
    parser.add_argument("--prefixes", type=int, metavar="N", help="different shared prefixes (workload prefix)")
    parser.add_argument("--temperature", type=float, metavar="T")
    parser.add_argument(
        "--ignore-eos", action=argparse.BooleanOptionalAction, default=None, help="force the full length"
    )
    parser.add_argument("--endpoint", choices=["chat", "completions"], help="which API (default: the workload's own)")
    parser.add_argument("--warmup", type=int, metavar="N", help="requests before the clock (default: the concurrency)")
    parser.add_argument("--seed", type=int, metavar="N", help="repeat the prompts of an earlier run")
    parser.add_argument("--file", metavar="FILE", help="prompts from a file (JSONL, ShareGPT, timed trace)")
    parser.add_argument("--processes", type=int, metavar="N", help="client processes (default: as many as are needed)")
    parser.add_argument("--timeout", type=_positive(float), metavar="S", help="deadline of one request")
    parser.add_argument("--slo-ttft", type=_positive(float), metavar="S", help="goodput: TTFT limit in seconds")
    parser.add_argument("--slo-tpot", type=_positive(float), metavar="S", help="goodput: TPOT limit in seconds")
    parser.add_argument("--slo-e2e", type=_positive(float), metavar="S", help="goodput: latency limit in seconds")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line (design: each screen has a twin here)."""
    parser = _Parser(
        prog="vtop",
        description="Dashboard and control panel for vLLM. Without a verb: the dashboard.",
        epilog="Exit codes: 0 done; 1 the thing asked for failed; 2 wrong usage; 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"vtop {__version__}")
    _add_watch(parser)
    _add_screen(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)

    demo = verbs.add_parser("demo", help="the dashboard on a simulated server and GPU")
    demo.add_argument("--gpu", metavar="NAME", default="RTX 4090", help="the simulated card (RTX 4090)")
    demo.add_argument("--no-tour", action="store_true", help="start with an empty screen, without the guided first act")
    _add_screen(demo)

    presets = verbs.add_parser("presets", help="list presets and load shapes; `show NAME` prints the exact commands")
    presets.add_argument("action", nargs="?", choices=["show"])
    presets.add_argument("name", nargs="?")
    presets.add_argument("--load", action="store_true", help="load shapes alone")
    presets.add_argument("--vllm-version", metavar="V", help="as this vLLM version would be started")
    presets.add_argument("--json", action="store_true")
    _add_set(presets)

    start = verbs.add_parser("start", help="start a server from a preset")
    start.add_argument("preset")
    start.add_argument("--name", help="name of the server (default: the preset's)")
    start.add_argument("--wait", action="store_true", help="wait until it is READY; exit 1 if it fails")
    start.add_argument(
        "--timeout", type=_positive(float), metavar="S", help="with --wait: give up (and stop it) after S"
    )
    start.add_argument("--dry-run", action="store_true", help="print what would run; start nothing")
    _add_simulation(start)
    _add_set(start)

    status = verbs.add_parser("status", help="servers, GPUs and metrics once")
    _add_watch(status, nested=True)
    status.add_argument("--json", action="store_true", default=False)

    logs = verbs.add_parser("logs", help="the log of a server")
    logs.add_argument("name")
    logs.add_argument("-f", "--follow", action="store_true")
    logs.add_argument("-n", "--lines", type=int, default=50, metavar="N")

    stop = verbs.add_parser("stop", help="stop servers and verify that nothing is left")
    stop.add_argument("names", nargs="*", metavar="NAME")
    stop.add_argument("--all", action="store_true", help="every server that vtop started")
    stop.add_argument("--yes", action="store_true", help="do not ask")

    load = verbs.add_parser("load", help="run a load test")
    load.add_argument(
        "workload", nargs="?", help="demo chat prefix long decode repeat random rate ladder (default: demo)"
    )
    _add_target(load)
    _add_load_shape(load)
    load.add_argument("--label", default="", metavar="TEXT", help="a note kept with the run")
    load.add_argument("--json", action="store_true", help="print the result as JSON")
    load.add_argument("--list", action="store_true", help="list the workloads and the load shapes")
    load.add_argument("--shape", metavar="NAME", help="a load shape of presets/load/; other options change its values")
    load.add_argument("--search", action="store_true", help="find the highest rate that holds the --slo limits")

    compare = verbs.add_parser("compare", help="start, load and stop presets in turn; the before/after table")
    compare.add_argument("presets", nargs="*", metavar="PRESET")
    compare.add_argument("--workload", metavar="NAME")
    compare.add_argument("--repeats", type=int, metavar="N", help="runs of each preset (3); 1 gives no verdict")
    compare.add_argument("--shape", metavar="NAME", help="a load shape of presets/load/ in place of a workload")
    _add_load_shape(compare)
    compare.add_argument(
        "--order", choices=["auto", "interleaved", "blocks"], default="auto", help="A B B A, or A A B B"
    )
    compare.add_argument("--dry-run", action="store_true", help="print the plan and its time")
    compare.add_argument("--resume", metavar="RUN", help="go on with a comparison that was cut")
    compare.add_argument("--json", action="store_true")
    _add_simulation(compare)
    _add_set(compare)

    experiment = verbs.add_parser("experiment", help="a guided experiment: one optimization under two loads")
    experiment.add_argument("name", nargs="?", help="which one (default: list them)")
    experiment.add_argument("--repeats", type=int, metavar="N", help="runs of each preset (3); 1 gives no verdict")
    experiment.add_argument("--json", action="store_true")
    _add_simulation(experiment)
    _add_set(experiment)

    runs = verbs.add_parser("runs", help="list saved runs")
    runs.add_argument("--json", action="store_true")

    report = verbs.add_parser("report", help="a report of saved runs")
    report.add_argument("runs", nargs="+", metavar="RUN")
    report.add_argument("--format", choices=["md", "csv", "json", "html"], default="md")
    report.add_argument("-o", "--output", metavar="FILE")

    importing = verbs.add_parser("import", help="take in a result of vllm bench, guidellm or aiperf")
    importing.add_argument("file")

    fit = verbs.add_parser("fit", help="does it fit, what is the floor, which optimization pays")
    fit.add_argument(
        "what",
        metavar="MODEL|PRESET|SERVER",
        help="a preset, a model, a folder with config.json, a server of vtop, or the URL of a running one",
    )
    fit.add_argument("--gpu", metavar="NAME", help="the card (default: the first one here)")
    fit.add_argument("--context", type=int, metavar="N", help="tokens a request")
    fit.add_argument("--concurrency", type=int, metavar="N", help="requests at once")
    fit.add_argument("--arithmetic", action="store_true", help="write the terms out")
    fit.add_argument("--json", action="store_true")
    _add_set(fit)

    diagnose = verbs.add_parser("diagnose", help="cause and remedy from a vLLM log")
    diagnose.add_argument("logfile")
    diagnose.add_argument("--exit-code", type=int, metavar="N")
    diagnose.add_argument("--json", action="store_true")

    doctor = verbs.add_parser("doctor", help="check NVML, vLLM, router, ports and leftovers")
    doctor.add_argument("--install-router", action="store_true", help="install vllm-router into vtop's own environment")
    doctor.add_argument("--vllm", metavar="PATH")
    doctor.add_argument("--json", action="store_true")

    replay = verbs.add_parser("replay", help="show a recording")
    replay.add_argument("file", help="made with `vtop --record FILE`; or `demo`: a real vLLM for CPU under load")
    replay.add_argument("--speed", type=_positive(float), default=1.0, metavar="X")
    replay.add_argument("--no-mouse", action="store_true")
    replay.add_argument("--ascii", action="store_true")

    web = verbs.add_parser("web", help="the dashboard in a browser, on this machine only")
    web.add_argument("--port", type=int, default=8765)
    web.add_argument("--readonly", action="store_true")
    web.add_argument("--demo", action="store_true", help="serve the simulated demo")

    completion = verbs.add_parser("completion", help="a script that completes verbs, options and names in a shell")
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    completion.set_defaults(parser=parser)
    names = verbs.add_parser("_complete")  # without help, so that no list shows it: only those scripts call it
    names.add_argument("kind")
    return parser


MODULES = {
    None: "dashboard",
    "demo": "demo",
    "presets": "presets",
    "start": "servers",
    "status": "status",
    "logs": "servers",
    "stop": "servers",
    "load": "load",
    "compare": "compare",
    "experiment": "experiment",
    "runs": "runs",
    "report": "runs",
    "import": "runs",
    "fit": "fit",
    "diagnose": "diagnose",
    "doctor": "doctor",
    "replay": "replay",
    "web": "web",
    "completion": "completion",
    "_complete": "names",
}
"""Verb -> module under `vtop.commands`, whose `run_VERB` does the work."""


def run(argv: Sequence[str] | None = None) -> int:
    """Parses and runs one command.

    Raises:
        VtopError: it failed in a way that a person should read.
    """
    arguments = build_parser().parse_args(argv)
    verb: str | None = arguments.verb
    module = importlib.import_module(f"vtop.commands.{MODULES[verb]}")
    handler: Callable[[argparse.Namespace], int] = getattr(module, f"run_{verb or 'dashboard'}")
    return handler(arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point: no traceback for what people can cause, exit codes as documented."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that is not UTF-8 shows ? for a letter that it lacks; the text goes on.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = run(argv)
        sys.stdout.flush()
        return code
    except VtopError as error:
        print(f"vtop: {error.what}", file=sys.stderr)  # noqa: T201
        if error.remedy:
            print(f"  {error.remedy}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        print("vtop: interrupted", file=sys.stderr)  # noqa: T201
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) went away: silence the flush at exit too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
