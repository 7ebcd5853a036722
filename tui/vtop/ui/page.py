"""What every screen has: the header, the footer with what can be done now, and one way to be painted."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual import on
from textual._styles_cache import StylesCache
from textual.app import ComposeResult
from textual.screen import Screen

from vtop.errors import VtopError
from vtop.telemetry.snapshot import Snapshot
from vtop.ui.canvas import Canvas
from vtop.ui.glyphs import Glyphs
from vtop.ui.ink import Line, wrap
from vtop.ui.panels.footer import footer
from vtop.ui.panels.header import header

if TYPE_CHECKING:
    from vtop.ui.app import VtopApp

Read = TypeVar("Read")


class Page(Screen[None], inherit_bindings=False):
    """A full screen of vtop. Keys come from the table of actions; Textual's own (tab moves the focus) are left out."""

    NAME: ClassVar[str] = ""
    """Its name in the table of actions."""
    HEADING: ClassVar[str] = ""
    """What the header calls it."""
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (160, "-very-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (16, "-low"), (28, "-tall")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._places: list[tuple[int, int, str]] = []
        self._unread = ""
        self.complete = False
        """Its widgets are there. Textual calls a screen mounted a moment before they are."""

    @property
    def vtop(self) -> VtopApp:
        """The application, with its type."""
        from vtop.ui.app import VtopApp

        app = self.app
        assert isinstance(app, VtopApp)
        return app

    @property
    def glyphs(self) -> Glyphs:
        """The marks to draw with."""
        return self.vtop.glyphs

    def compose(self) -> ComposeResult:
        """Header, body, footer."""
        yield Canvas(id="header")
        yield from self.compose_body()
        yield Canvas(id="caption", classes="-gone")
        yield Canvas(id="footer")

    def compose_body(self) -> ComposeResult:
        """What stands between header and footer."""
        yield Canvas(id="body")

    def on_mount(self) -> None:
        """Sets the marks and paints at once, not only with the next tick."""
        self.complete = True
        for canvas in self.query(Canvas):
            canvas.plain_text = self.glyphs.ascii
        self.vtop.paint_soon()

    def on_unmount(self) -> None:
        """Lets go of the rows that were drawn here: a cache of colours in Textual is keyed by what holds them."""
        forget = getattr(StylesCache.get_inner_outer, "cache_clear", None)
        if forget is not None:
            forget()

    def on_screen_resume(self) -> None:
        """Back on top: what was missed is painted at once."""
        self.vtop.paint_soon()

    def paint(self, snapshot: Snapshot) -> None:
        """Draws everything from one snapshot; rows that did not change cost nothing."""
        app = self.vtop
        server = app.server_in(snapshot)
        situation = app.situation(self)
        keymap = app.settings.keys

        def draw_footer(width: int, height: int) -> list[Line]:
            line, self._places = footer(situation, keymap, width)
            return [line]

        self.query_one("#header", Canvas).show(
            lambda width, height: [header(snapshot, server, app.view, width, self.glyphs, self.heading())]
        )
        self.query_one("#footer", Canvas).show(draw_footer)
        self._paint_caption()
        self.paint_body(snapshot)

    def _paint_caption(self) -> None:
        caption = self.vtop.view.demo_caption
        canvas = self.query_one("#caption", Canvas)
        canvas.set_class(not caption, "-gone")

        def draw(width: int, height: int) -> list[Line]:
            rows = [Line(" ").join(line) for line in wrap(caption, width - 2, "strong")][: height - 1]
            return [*rows, Line(" ").add("any key", "key").add(" takes over", "dim")]

        if caption:
            canvas.show(draw)

    def read(self, call: Coroutine[Any, Any, Read], what: str, then: Callable[[Read], None]) -> None:
        """Reads what the screen is about beside the event loop; where that fails, the screen says so itself."""

        async def guarded() -> Read:
            try:
                return await call
            except VtopError as error:
                self._unread = f"{error.what}. {error.remedy}".strip()
                self.vtop.paint_soon()
                raise

        self.vtop.call(guarded(), what, then)

    def not_read_rows(self, width: int) -> list[Line]:
        """In the place of what is being read, or could not be."""
        if not self._unread:
            return [Line(" Reading ...", "dim")]
        return [Line(" ").join(line) for line in wrap(self._unread, max(10, width - 2), "bad")]

    def heading(self) -> str:
        """What the header calls this screen now."""
        return self.HEADING

    def paint_body(self, snapshot: Snapshot) -> None:
        """Draws what stands between header and footer."""

    def action_name(self) -> str:
        """Its name in the table of actions, where that depends on what it shows."""
        return self.NAME

    def pulse(self) -> object:
        """Changes when there is something to paint apart from a new snapshot."""
        return None

    def has_item(self) -> bool:
        """Whether something is chosen here that `enter` and its like act on."""
        return False

    def has_undo(self) -> bool:
        """Whether something was done here that can be undone."""
        return False

    @on(Canvas.Clicked, "#footer")
    def _footer_clicked(self, event: Canvas.Clicked) -> None:
        for start, end, action in self._places:
            if start <= event.x < end:
                if action == "palette":
                    self.app.action_command_palette()
                else:
                    self.vtop.act(action)
                return
