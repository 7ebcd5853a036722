"""The command palette: every action that is possible now, and what people look for by name (`start spec-ngram`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.css.query import NoMatches
from textual.events import Mount
from textual.worker import Worker

from vtop.errors import VtopError
from vtop.ui.actions import ACTIONS, BY_ID, can_act, keys_of, label_of
from vtop.ui.ink import printable

if TYPE_CHECKING:
    from vtop.ui.app import VtopApp


class Palette(CommandPalette):
    """Textual's palette, which ends the program where a key comes between its opening and its first results."""

    def _on_mount(self, event: Mount) -> None:
        if self not in self.app.screen_stack:
            # Closed before it was open: Textual's own handler looks for the screen below it.
            event.prevent_default()

    def run_worker(self, *args: Any, **kwargs: Any) -> Worker[Any]:
        """A search that is left half-way is no reason to end."""
        kwargs["exit_on_error"] = False
        return super().run_worker(*args, **kwargs)

    def _action_command_list(self, action: str) -> None:
        with contextlib.suppress(NoMatches, KeyError):
            super()._action_command_list(action)


class VtopCommands(Provider):
    """Actions, and starts and stops by name. What is shown is literal: a title or an address is never markup."""

    @property
    def vtop(self) -> VtopApp:
        """The application, with its type."""
        from vtop.ui.app import VtopApp

        app = self.app
        assert isinstance(app, VtopApp)
        return app

    def _commands(self) -> Iterator[tuple[str, str, Callable[[], None]]]:
        app = self.vtop
        now = app.situation(self.screen)
        for action in ACTIONS:
            if can_act(action, now):
                keys = ", ".join(keys_of(action, app.settings.keys))
                yield label_of(action, now), f"{action.help}  ({keys})", partial(app.act, action.id)
        if now.readonly:
            return
        try:
            presets, _ = app.service.presets()
        except VtopError:
            presets = ()
        for preset in presets:
            yield (
                f"start {printable(preset.name)}",
                printable(preset.title),
                partial(app.deeds.start_preset, preset.name),
            )
        for view in app.snapshot.servers:
            name = view.status.name
            if can_act(BY_ID["stop"], replace(now, screen="", server=view)):
                yield f"stop {printable(name)}", printable(view.status.url), partial(app.deeds.ask_stop, name)
            yield f"show {printable(name)}", "select this server", partial(app.deeds.choose_server, name)

    async def discover(self) -> Hits:
        """Everything, before anything is typed."""
        for title, text, run in self._commands():
            yield DiscoveryHit(Content(title), run, title, escape(text))

    async def search(self, query: str) -> Hits:
        """What matches."""
        matcher = self.matcher(query)
        for title, text, run in self._commands():
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, matcher.highlight(title), run, title, escape(text))
