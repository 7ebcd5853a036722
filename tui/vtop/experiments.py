"""The guided experiments: what each optimization is, a load that shows it off, one that does not, what to watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vtop import units
from vtop.errors import UsageError
from vtop.results.comparison import CompareProgress, CompareRequest, CompareRow

SIMULATED_WARMUP = 4
"""Requests before the clock of a short simulation: there are no kernels to warm, only connections to open."""


LEAST = "Does not help"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One load of an experiment; None: the workload's own."""

    workload: str
    why: str
    """What the optimization can (or cannot) do with it, as a clause."""
    heading: str = "Shows it off"
    concurrency: int | None = None
    simulated_requests: int = 32
    """In simulations, whose time passes as slowly as real time, a shorter run will do."""
    simulated_tokens: int | None = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One optimization, shown by comparing two presets under two loads."""

    name: str
    title: str
    what: str
    """Three sentences."""
    presets: tuple[str, str]
    """Without it, with it."""
    shows_off: Trial
    does_not_help: Trial
    watch: str
    """The picture that makes it visible."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings of both presets, so that they differ in one thing only."""

    @property
    def trials(self) -> tuple[Trial, Trial]:
        """The load that shows it off, then the one that does not."""
        return self.shows_off, self.does_not_help

    def request(
        self,
        trial: Trial,
        *,
        repeats: int,
        simulated: bool = False,
        gpu: str | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> CompareRequest:
        """The comparison of the two presets under one of the loads.

        Args:
            trial: one of `trials`.
            repeats: runs of each preset.
            simulated: simulated servers, with the shorter loads.
            gpu: the simulated card.
            overrides: `--set`; wins over the experiment's own.
        """
        return CompareRequest(
            presets=self.presets,
            workload=trial.workload,
            repeats=repeats,
            overrides={**self.overrides, **(overrides or {})},
            simulated=simulated,
            gpu=gpu,
            concurrency=trial.concurrency,
            requests=trial.simulated_requests if simulated else None,
            max_tokens=trial.simulated_tokens if simulated else None,
            warmup=SIMULATED_WARMUP if simulated else None,
        )


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        name="continuous-batching",
        title="Continuous batching",
        what=(
            "Each decode step reads every weight once, however many sequences share that reading. vLLM lets requests "
            "join and leave the batch at every step, so that the reading is shared all the time. Throughput grows "
            "with the batch until KV cache, arithmetic or the queue sets the limit; the time per token hardly changes."
        ),
        presets=("sequential", "baseline"),
        # One at a time takes longest of all, so its simulated answers are shorter still.
        shows_off=Trial(workload="demo", why="16 at once share each reading of the weights", simulated_tokens=32),
        does_not_help=Trial(
            heading=LEAST,
            workload="demo", why="one at a time leaves nothing to share", concurrency=1, simulated_requests=6
        ),
        watch="Batch occupancy: requests running against waiting, and tokens per step.",
    ),
    Experiment(
        name="prefix-caching",
        title="Prefix caching",
        what=(
            "The KV cache of a prompt's beginning depends on nothing that comes after it. vLLM keeps its blocks, so a "
            "prompt that begins like an earlier one is computed only from where they part. It shortens prefill, hence "
            "TTFT; a decode step stays as it was, but fewer prefills stand between two of them, so TPOT can fall too."
        ),
        presets=("baseline", "prefix-caching"),
        shows_off=Trial(workload="prefix", why="10 prefixes of 2,048 tokens come again and again"),
        does_not_help=Trial(heading=LEAST, workload="random", why="no two prompts begin alike"),
        watch="Prefix hit rate up and TTFT down; TPOT falls only where prefills interrupted it.",
    ),
    Experiment(
        name="speculative-decoding",
        title="Speculative decoding",
        what=(
            "A cheap guesser proposes several tokens and the model checks them all in one step, which reads the "
            "weights only once. Accepted guesses are tokens for free; the output's distribution stays the same. It "
            "pays only while the accepted tokens per step are above the break-even line, the cost of the longer step."
        ),
        presets=("baseline", "spec-ngram"),
        shows_off=Trial(workload="repeat", why="the answer repeats the prompt, so it is easy to guess"),
        does_not_help=Trial(heading=LEAST, workload="random", why="there is nothing to guess from"),
        watch="Accepted tokens by position, and the tokens of a step against the break-even line.",
    ),
    Experiment(
        name="quantization",
        title="Quantization",
        what=(
            "Weights in 4 bits instead of 16 are a quarter of the bytes that each decode step must read. What they "
            "free becomes KV cache, so more requests fit at once. Prefill is bound by arithmetic, which weights that "
            "are unpacked to 16 bits for it do not make cheaper."
        ),
        presets=("baseline", "awq"),
        shows_off=Trial(workload="decode", why="long answers read the weights at each token", simulated_requests=16),
        does_not_help=Trial(
            heading="Pays least",
            workload="long",
            why="long prompts are bound by arithmetic",
            simulated_requests=8,
            simulated_tokens=8,
        ),
        watch="Weights, KV capacity and the TPOT floor, and TPOT coming down to the new floor.",
    ),
    Experiment(
        name="pd-disaggregation",
        title="Prefill and decode apart",
        what=(
            "On one GPU a long prefill stands in the way of everybody's next token. Prefill and decode on GPUs of "
            "their own keep out of each other's way, and the KV cache travels between them. It steadies TPOT and lets "
            "TTFT be tuned apart; it takes two GPUs, which together seldom give twice the throughput of one."
        ),
        presets=("baseline", "pd-disaggregation"),
        shows_off=Trial(
            workload="long",
            why="long prompts interrupt decoding on one GPU",
            simulated_requests=12,
            simulated_tokens=32,
        ),
        does_not_help=Trial(
            heading=LEAST, workload="decode", why="short prompts hardly interrupt it", simulated_requests=16
        ),
        watch="Prompts at one server, answers at the other, and how far the slow gaps between tokens lie above usual.",
    ),
    Experiment(
        name="tensor-parallel",
        title="Tensor parallelism",
        what=(
            "Each layer is split over several GPUs, and each reads only its share of the weights in a step. TPOT falls "
            "nearly by the number of GPUs while reading is what takes the time; every layer ends in an exchange "
            "between them. It is also the way to serve a model that does not fit one card."
        ),
        presets=("baseline", "tensor-parallel"),
        shows_off=Trial(workload="decode", why="each GPU reads a quarter of the weights", simulated_requests=16),
        does_not_help=Trial(
            heading="Pays least",
            workload="long",
            why="long prompts send much between the GPUs at each layer, so each gives less than it would alone",
            simulated_requests=8,
            simulated_tokens=8,
        ),
        watch="DRAM bandwidth of every GPU at once, TPOT, and the floor that has moved down with the number of GPUs.",
        # The preset's own model fits no single card: the same model on both sides, or there is nothing to compare.
        overrides={"model": "Qwen/Qwen2.5-7B-Instruct", "served_name": "qwen2.5-7b"},
    ),
)  # fmt: skip
"""In the order in which they are explained best."""


def experiment_named(name: str) -> Experiment:
    """One by its name.

    Raises:
        UsageError: there is none.
    """
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    raise UsageError(
        f"there is no experiment {name!r}", f"Choose one of: {', '.join(one.name for one in EXPERIMENTS)}."
    )


def experiment_of(request: CompareRequest) -> Experiment | None:
    """The experiment to which a comparison belongs; None where it is one of a person's own."""
    for experiment in EXPERIMENTS:
        if request.presets == experiment.presets and request.workload in {t.workload for t in experiment.trials}:
            return experiment
    return None


def result_sentence(progress: CompareProgress) -> str:
    """What came out of one load, in one sentence from the measured rows; "" while there is no second row.

    Args:
        progress: a comparison of two presets, at any time.
    """
    if len(progress.rows) < 2:
        return ""
    before, after = progress.rows[0], progress.rows[1]
    mark = "SIMULATED: " if progress.simulated else ""
    load = f"with the workload `{progress.request.workload or 'chat'}`"
    if progress.request.concurrency is not None:
        load += f" at {progress.request.concurrency} at once"
    if after.verdict.startswith("not comparable"):
        return f"{mark}{load[0].upper()}{load[1:]}, {after.preset} and {before.preset} are {after.verdict}."
    ratio = units.DASH if after.ratio is None else f"{units.significant(after.ratio)}x"
    reach = ""
    if after.ratio_low is not None and after.ratio_high is not None:
        reach = f" ({units.significant(after.ratio_low)} to {units.significant(after.ratio_high)}x)"
    said = f"{after.preset} gave {ratio}{reach} the output tokens/s of {before.preset}: {after.verdict}"
    if before.gpus and after.gpus and before.gpus != after.gpus:
        each = "" if after.ratio is None else f", {units.significant(after.ratio * before.gpus / after.gpus)}x a GPU"
        said += f" (with {after.gpus} GPUs against {before.gpus}{each})"
    details = _details(before, after)
    return f"{mark}{load[0].upper()}{load[1:]}, {said}{'; ' + '; '.join(details) if details else ''}."


def _details(before: CompareRow, after: CompareRow) -> list[str]:
    said = []
    for name, one, two, verdict in (
        ("TTFT", before.ttft_p50_s, after.ttft_p50_s, after.ttft_verdict),
        ("TPOT", before.tpot_p50_s, after.tpot_p50_s, after.tpot_verdict),
    ):
        if verdict in ("faster", "slower") and one is not None and two is not None:
            said.append(f"{name} p50 {units.duration(one)} to {units.duration(two)}, {verdict}")
    if after.prefix_hit_rate:
        said.append(f"{units.percent(after.prefix_hit_rate)} prefix hits")
    if after.acceptance is not None:
        share = f"a guess in {units.percent(after.guessed_share)} of the steps, " if after.guessed_share else ""
        said.append(f"{share}{units.percent(after.acceptance)} of the guessed tokens accepted")
    one, two = before.weights_bytes, after.weights_bytes
    if one and two and abs(two / one - 1) > 0.05:
        said.append(f"weights {units.gib(one)} to {units.gib(two)}")
    return said
