"""`vtop experiment`: one optimization under the load that shows it off and one that does not."""

from __future__ import annotations

import argparse

import msgspec

from vtop.commands.compare import DEFAULT_REPEATS, SIMULATED_REPEATS, comparison_table, watch_compare
from vtop.commands.console import note, say, say_json, table
from vtop.commands.session import options_from, with_service
from vtop.errors import UsageError
from vtop.experiments import EXPERIMENTS, Experiment, experiment_named, result_sentence
from vtop.preset_files import parse_set
from vtop.results.comparison import CompareProgress
from vtop.service import VtopService


def _list() -> None:
    rows = [(e.name, " · ".join(e.presets), e.shows_off.workload, _load(e, 1)) for e in EXPERIMENTS]
    say(table(rows, ("EXPERIMENT", "PRESETS", "SHOWS OFF", "HELPS LEAST OR NOT")))
    say("`vtop experiment NAME --sim` runs one without a GPU.")


def _load(experiment: Experiment, index: int) -> str:
    trial = experiment.trials[index]
    return trial.workload if trial.concurrency is None else f"{trial.workload} -c {trial.concurrency}"


def _introduce(experiment: Experiment) -> None:
    note(f"{experiment.title}. {experiment.what}")
    for index, trial in enumerate(experiment.trials):
        note(f"{trial.heading}: `{_load(experiment, index)}`, {trial.why}.")
    note(f"Watch: {experiment.watch}")


def run_experiment(arguments: argparse.Namespace) -> int:
    """Lists, or runs one; exit 1 when a comparison failed, 130 when it was cut."""
    if arguments.name is None:
        if arguments.json:
            say_json(msgspec.to_builtins(EXPERIMENTS))
        else:
            _list()
        return 0
    experiment = experiment_named(arguments.name)
    if arguments.repeats is not None and arguments.repeats < 1:
        raise UsageError(f"--repeats {arguments.repeats}: at least one run is needed", "Three give an interval.")
    simulated = bool(arguments.sim)
    repeats = arguments.repeats or (SIMULATED_REPEATS if simulated else DEFAULT_REPEATS)

    async def use(service: VtopService) -> int:
        _introduce(experiment)
        outcomes: list[CompareProgress] = []
        for trial in experiment.trials:
            request = experiment.request(
                trial,
                repeats=repeats,
                simulated=simulated,
                gpu=arguments.gpu,
                overrides=parse_set(arguments.set),
            )
            await service.start_compare(request)
            progress = await watch_compare(service)
            outcomes.append(progress)
            if not arguments.json:
                _print(progress)
            if progress.state != "finished":
                break
        if arguments.json:
            results = [{**msgspec.to_builtins(one), "sentence": result_sentence(one)} for one in outcomes]
            say_json({"experiment": experiment.name, "results": results})
        return {"finished": 0, "cancelled": 130}.get(outcomes[-1].state, 1)

    fixed = {"discover": False, "simulated": simulated, **({"gpu": arguments.gpu} if arguments.gpu else {})}
    return with_service(options_from(arguments, **fixed), use)


def _print(progress: CompareProgress) -> None:
    say(comparison_table(progress.rows))
    for text in (*progress.warnings, *([progress.message] if progress.message else [])):
        say(f"note: {text}")
    say(result_sentence(progress))
    say(f"saved in {progress.directory}\n")
