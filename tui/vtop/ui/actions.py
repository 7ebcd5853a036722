"""The one table of what a person can do: keys, footer, palette, help and `--readonly` are all made from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vtop.servers.status import ServerState
from vtop.telemetry.snapshot import ServerView


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides whether an action can be done now."""

    screen: str = "dashboard"
    server: ServerView | None = None
    servers: int = 0
    load_running: bool = False
    compare_running: bool = False
    readonly: bool = False
    replayed: bool = False
    """A recording is shown."""
    recording: bool = False
    """There is a recording to show in the place of what is measured here (`vtop demo`)."""
    recording_shown: bool = False
    typing: bool = False
    """A line to type in has the keys: letters are text."""
    item: bool = False
    """Something is chosen on the current screen (a run, a preset, a finished test)."""

    undo: bool = False
    """Something was done on the current screen that can be undone."""

    @property
    def state(self) -> ServerState | None:
        """The selected server's state."""
        return self.server.status.state if self.server else None


Check = Callable[[Situation], bool]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can be done."""

    id: str
    """Its name in the `[keymap]` table of the settings."""
    keys: str
    """Default keys, by comma."""
    label: str
    """For the footer: one or two words."""
    help: str
    """For the help screen and the palette: one sentence."""
    group: str
    mutates: bool = False
    """Not allowed with `--readonly`."""
    can: Check = lambda _: True
    footer: int = 0
    """Place in the footer, the higher the sooner it is dropped; 0: not there."""
    screens: tuple[str, ...] = ()
    """Where the footer shows it; (): everywhere."""


def _always(_: Situation) -> bool:
    return True


def _can_load(now: Situation) -> bool:
    ready = now.state in (ServerState.READY, ServerState.DEGRADED, ServerState.FOREIGN)
    return now.load_running or (ready and not now.compare_running)


def _can_stop(now: Situation) -> bool:
    if now.screen == "load" and now.load_running:
        return True
    if now.screen in ("compare", "compared") and now.compare_running:
        return True
    view = now.server
    if view is None or not view.status.owned:
        return False
    if view.status.state in (ServerState.STOPPED, ServerState.FAILED, ServerState.LOST):
        return bool(view.status.pids)
    return view.status.state not in (ServerState.STOPPING, ServerState.FOREIGN)


def _can_forget(now: Situation) -> bool:
    return now.state in (ServerState.STOPPED, ServerState.FAILED, ServerState.LOST)


def _can_remedy(now: Situation) -> bool:
    view = now.server
    if view is None or now.state is not ServerState.FAILED or view.status.diagnosis is None:
        return False
    return bool(view.status.preset) and any(remedy.overrides for remedy in view.status.diagnosis.remedies)


def _replayed(now: Situation) -> bool:
    return now.replayed


def _has_server(now: Situation) -> bool:
    return now.server is not None


def _has_log(now: Situation) -> bool:
    return now.server is not None and now.server.status.log_path is not None


def _can_chat(now: Situation) -> bool:
    return now.state in (ServerState.READY, ServerState.DEGRADED, ServerState.FOREIGN)


def _can_mark(now: Situation) -> bool:
    return now.screen == "compare" or (now.screen == "runs" and now.item)


def _several(now: Situation) -> bool:
    return now.servers > 1


def _can_open(now: Situation) -> bool:
    if now.screen == "cut-comparison" and now.readonly:
        return False
    return now.server is not None if now.screen == "dashboard" else now.item


SERVERS, MEASURE, LOOK, MOVE, VTOP = "Servers", "Measure", "Look", "Move", "vtop"
GROUPS = (SERVERS, MEASURE, LOOK, MOVE, VTOP)
"""In the order of the help screen."""

BACK_FROM = (
    "start",
    "load",
    "result",
    "logs",
    "compare",
    "compared",
    "side-by-side",
    "comparison",
    "cut-comparison",
    "chat",
    "runs",
    "help",
    "explain",
    "choose-load",
    "experiments",
)
"""Screens that `escape` leaves."""

COMPARISONS = ("compared", "comparison", "cut-comparison")
"""The table of a comparison: of this vtop, saved and finished, saved and cut."""

EXPORTED = ("result", *COMPARISONS, "runs")
"""Screens that show what can be written as a report."""

OPENED = ("start", "load", "compare", "runs", "choose-load", "experiments", "chat", "cut-comparison")
"""Screens where `enter` does something that the footer names."""

ACTIONS: tuple[Action, ...] = (
    Action("open", "enter", "Open", "Open what is selected.", MOVE, can=_can_open, footer=1, screens=OPENED),
    Action("start", "s", "Start", "Start a server from a preset.", SERVERS, mutates=True, footer=1,
           screens=("dashboard", "logs", "explain")),
    Action("stop", "x", "Stop", "Stop the selected server; on the load test and compare screens, stop that.", SERVERS,
           mutates=True, can=_can_stop, footer=3, screens=("dashboard", "load", "compared", "logs", "explain")),
    Action("remedy", "f", "Fix", "Apply the suggested remedy of a failed server and start it again.", SERVERS,
           mutates=True, can=_can_remedy, footer=1),
    Action("forget", "X", "Forget", "Drop a stopped or failed server from the list.", SERVERS, mutates=True,
           can=_can_forget, footer=9, screens=("dashboard",)),
    Action("logs", "g", "Logs", "The selected server's log.", SERVERS, can=_has_log, footer=5,
           screens=("dashboard", "explain", "load")),
    Action("chat", "t", "Chat", "Send one prompt and see the answer stream in, with its TTFT and TPOT.", SERVERS,
           mutates=True, can=_can_chat, footer=7, screens=("dashboard",)),
    Action("edit", "E", "Edit", "Edit the chosen preset in $EDITOR; it is checked when you come back.", SERVERS,
           mutates=True, can=lambda now: now.screen == "start" and now.item, footer=3, screens=("start",)),
    Action("load", "l", "Load test", "Run a load test on the selected server at once.", MEASURE, mutates=True,
           can=_can_load, footer=1, screens=("dashboard", "explain", "result")),
    Action("choose-load", "L", "Workload", "Choose workload, concurrency and length of the load test.", MEASURE,
           mutates=True, can=_can_load, footer=8, screens=("dashboard", "load", "result")),
    Action("compare", "c", "Compare", "Compare presets: start, load and stop each, then a table with verdicts.",
           MEASURE, mutates=True, footer=2, screens=("dashboard", "start", *COMPARISONS)),
    Action("experiments", "i", "Experiments", "Guided experiments: each optimization under a load that shows it off.",
           MEASURE, mutates=True, footer=9, screens=("dashboard",)),
    Action("runs", "r", "Runs", "Saved load tests and comparisons.", MEASURE, footer=6,
           screens=("dashboard", "result", "compare", *COMPARISONS)),
    Action("export", "o", "Export", "Write the shown result as Markdown, CSV and HTML.", MEASURE,
           can=lambda now: now.item and now.screen in EXPORTED, footer=3, screens=EXPORTED),
    Action("delete", "D,delete", "Delete", "Delete the chosen run; it can be brought back.", MEASURE, mutates=True,
           can=lambda now: now.item and now.screen == "runs", footer=4, screens=("runs",)),
    Action("undo", "u", "Undo", "Bring back what was deleted last.", MEASURE, mutates=True,
           can=lambda now: now.undo, footer=3, screens=("runs",)),
    Action("mark", "space", "Mark", "Mark or unmark the chosen row.", MEASURE,
           can=_can_mark, footer=2, screens=("compare", "runs")),
    Action("explain", "e", "Explain", "The verdict with its arithmetic, every reading, and why others are missing.",
           LOOK, can=_has_server, footer=4, screens=("dashboard", "load")),
    Action("window", "w", "Window", "Window of every live rate and percentile: 10, 30, 60 or 300 s.", LOOK),
    Action("pause", "p", "Pause", "Stop painting; measuring goes on.", LOOK, footer=8, screens=("dashboard",)),
    Action("rewind", "less_than_sign,comma", "Back 10 s", "Ten seconds back in a recording; p stops and goes on.", LOOK,
           can=_replayed, footer=2, screens=("dashboard",)),
    Action("forward", "greater_than_sign,full_stop", "On 10 s", "Ten seconds on in a recording.", LOOK,
           can=_replayed, footer=2, screens=("dashboard",)),
    Action("recording", "v", "Recording", "In the demo: play the recording of a real vLLM, and come back from it.",
           LOOK, can=lambda now: now.recording, footer=3, screens=("dashboard",)),
    Action("faster", "plus,equals_sign", "Faster", "Paint more often.", LOOK),
    Action("slower", "minus", "Slower", "Paint less often: fewer bytes on a slow link.", LOOK),
    Action("large", "b", "Big", "Large numbers, for a projector.", LOOK),
    Action("chart-1", "1", "TTFT", "Show the TTFT chart; once more: full screen.", LOOK),
    Action("chart-2", "2", "TPOT", "Show the TPOT chart; once more: full screen.", LOOK),
    Action("chart-3", "3", "Output", "Show the output chart; once more: full screen.", LOOK),
    Action("panel-gpus", "4", "GPUs", "The GPU panel on the full screen, and back.", LOOK),
    Action("panel-servers", "5", "Servers", "The server list on the full screen, and back.", LOOK),
    Action("panel-engine", "6", "Engine", "The engine and the verdict on the full screen, and back.", LOOK),
    Action("search", "slash", "Search", "Search in the log.", LOOK, can=lambda now: now.screen == "logs", footer=2,
           screens=("logs",)),
    Action("search-next", "n", "Next", "The next match.", LOOK, can=lambda now: now.screen == "logs" and now.item,
           footer=3, screens=("logs",)),
    Action("search-back", "N", "Previous", "The match before.", LOOK,
           can=lambda now: now.screen == "logs" and now.item),
    Action("follow", "F", "Follow", "Stay at the end of the log.", LOOK, can=lambda now: now.screen == "logs",
           footer=2, screens=("logs",)),
    Action("next-server", "tab,down,j", "Next", "Select the next server.", MOVE, can=_several),
    Action("previous-server", "shift+tab,up,k", "Previous", "Select the server before.", MOVE, can=_several),
    Action("gpus-down", "right_square_bracket", "GPUs down", "Scroll the list of GPUs.", MOVE),
    Action("gpus-up", "left_square_bracket", "GPUs up", "Scroll the list of GPUs back.", MOVE),
    Action("back", "escape", "Back", "Back to the screen before.", MOVE,
           can=_always, footer=1, screens=BACK_FROM),
    Action("help", "question_mark,f1", "Help", "Keys, and what each number means.", VTOP, footer=1),
    Action("picture", "S", "Picture", "Save a picture of this screen as SVG.", VTOP),
    Action("suspend", "ctrl+z", "Suspend", "Put vtop in the background; `fg` brings it back.", VTOP),
    Action("quit", "q,ctrl+c,ctrl+q", "Quit", "Leave vtop; servers keep running.", VTOP, footer=1),
)  # fmt: skip
"""Every action, in the order of footer and help."""

BY_ID: Mapping[str, Action] = {action.id: action for action in ACTIONS}
"""The same by id."""

OPEN_LABELS = {
    "start": "Start it",
    "load": "Result",
    "compare": "Go",
    "runs": "Open",
    "choose-load": "Run it",
    "experiments": "Run it",
    "chat": "Send",
    "cut-comparison": "Go on with it",
}
"""What `enter` does on a screen, for the footer."""


def can_act(action: Action, now: Situation) -> bool:
    """Whether it can be done now; nothing that changes anything with `--readonly`."""
    return not (action.mutates and now.readonly) and action.can(now)


def label_of(action: Action, now: Situation) -> str:
    """The footer's word for it, here and now."""
    if action.id == "open":
        return OPEN_LABELS.get(now.screen, action.label)
    if action.id == "recording" and now.recording_shown:
        return "Back to the demo"
    if action.id == "load" and now.load_running:
        return "Watch test"
    if action.id == "compare" and now.screen == "compared":
        return "Another"
    if action.id == "compare" and now.compare_running:
        return "Watch compare"
    if action.id == "stop" and now.screen == "load" and now.load_running:
        return "Stop test"
    if action.id == "stop" and now.screen in ("compare", "compared") and now.compare_running:
        return "Stop comparing"
    if action.id == "stop" and now.screen != "dashboard":
        return "Stop server"
    if action.id == "mark" and now.screen == "compare":
        return "Pick"
    return action.label


KEY_NAMES = {
    "question_mark": "?", "slash": "/", "plus": "+", "minus": "-", "equals_sign": "=", "right_square_bracket": "]",
    "left_square_bracket": "[", "less_than_sign": "<", "greater_than_sign": ">", "comma": ",", "full_stop": ".",
    "escape": "esc", "delete": "del", "space": "space", "shift+tab": "shift+tab",
}  # fmt: skip
"""Textual's names of keys -> what is printed on them."""


def key_name(key: str) -> str:
    """A key as a person writes it: `?`, `^c`, `shift+tab`."""
    key = key.strip()
    if key.startswith("ctrl+"):
        return "^" + key[5:]
    return KEY_NAMES.get(key, key)


def keys_of(action: Action, keymap: Mapping[str, str]) -> list[str]:
    """The keys of an action with the user's own in place of the default ones."""
    return [key_name(key) for key in keymap.get(action.id, action.keys).split(",") if key.strip()]


def key_shown(action: Action, now: Situation, keymap: Mapping[str, str]) -> str:
    """The key that the footer names: the first one, or while typing the first that is not text; "" if there is none."""
    names = keys_of(action, keymap)
    if now.typing:
        names = [name for name in names if len(name) > 1 and name != "space"]
    return names[0] if names else ""


def keymap_problems(keymap: Mapping[str, str]) -> list[str]:
    """What is wrong with a user's `[keymap]` table, one line each."""
    problems = [f"[keymap] {name}: there is no such action" for name in keymap if name not in BY_ID]
    owners: dict[str, str] = {}
    for action in ACTIONS:
        for key in keymap.get(action.id, action.keys).split(","):
            other = owners.setdefault(key.strip(), action.id)
            if other != action.id:
                problems.append(f"[keymap] {key.strip()} is both {other} and {action.id}; the first one wins")
    return problems
