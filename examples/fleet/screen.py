"""What a person sees: one moving picture while it runs, a table at the end."""

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fleet import ControlRoom, Office, Vehicle
from ledger import Ledger, Totals

PICTURES_PER_S = 4


class Screen:
    """Draws on standard error, so that `--json` leaves standard output to the numbers."""

    def __init__(self, telemetry: Ledger, commands: Ledger) -> None:
        self._console = Console(stderr=True)
        self._spinner = Spinner("dots", "")
        self._telemetry = telemetry
        self._commands = commands
        self._vehicles: list[Vehicle] = []
        self._room: ControlRoom | None = None
        self._office: Office | None = None
        self._live = Live(
            console=self._console,
            get_renderable=self._picture,
            refresh_per_second=PICTURES_PER_S,
            transient=True,
            redirect_stdout=False,
        )

    def __enter__(self) -> "Screen":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def watch(self, vehicles: list[Vehicle], room: ControlRoom, office: Office) -> None:
        """Show these from now on."""
        self._vehicles, self._room, self._office = vehicles, room, office

    def say(self, seconds: float, text: str) -> None:
        """A new chapter."""
        self._spinner.update(text=Text(text))
        self._console.print(f"[dim]{seconds:5.1f} s[/]  {text}", highlight=False, soft_wrap=True)

    def _picture(self) -> Group:
        table = result_table(self._telemetry.totals(), self._commands.totals(), is_over=False)
        return Group(self._spinner, self._people(), table)

    def _people(self) -> Text:
        if self._office is None or self._room is None:
            return Text()
        online = sum(vehicle.is_online for vehicle in self._vehicles)
        office = "[green]there[/]" if self._office.is_there else "[yellow]away[/]"
        return Text.from_markup(
            f"  {online} of {len(self._vehicles)} vehicles online, the office is {office}, the broker keeps"
            f" {self._telemetry.on_the_way} reports and {self._commands.on_the_way} commands"
        )


def result_table(telemetry: Totals, commands: Totals, *, is_over: bool) -> Table:
    """Sent, acknowledged, delivered, and what must be 0 at the end: what has not arrived is under way until then."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in (
        "sent",
        "acknowledged",
        "delivered",
        "lost" if is_over else "under way",
        "duplicated",
        "reordered",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for label, totals in (("telemetry", telemetry), ("commands", commands)):
        table.add_row(label, *(f"{number:,}" for number in totals.as_json().values()))
    return table
