"""What can be done with a model's files: fetch, pause, check, repair, remove. Whatever takes a while is done away."""

from abc import abstractmethod
from collections.abc import Callable
from threading import Event as Flag

from textual import work

from localmoe.errors import CancelledError, LocalmoeError
from localmoe.tui.model_list import Listed
from localmoe.tui.screens.full_page import FullPageScreen
from localmoe.tui.surveyor import OpenSurveyor
from localmoe.tui.transfers import Transfer, Transfers

NOTHING_ON_HUB = "{} is not from the hub: there is nothing to fetch"
ALREADY_HERE = "{} is here already. V checks its files"
IS_OPEN = "{} is open in the chat: open another model first"
NOT_HERE = "{} is not here"
NOT_IN_CACHE = "{} is not in the Hugging Face cache: remove its folder yourself"


class ModelTransfersScreen(FullPageScreen[Listed]):
    """The actions; a screen with a list of models adds what is seen."""

    def __init__(self, open_surveyor: OpenSurveyor, transfers: Transfers, open_model: str) -> None:
        super().__init__()
        self.open_surveyor, self.transfers = open_surveyor, transfers
        self.open_model = open_model  # its name, as the engine has it
        self._stop_asking = Flag()

    @property
    @abstractmethod
    def chosen(self) -> Listed | None:
        """The model that the next action is about."""

    @abstractmethod
    def list_again(self) -> object:
        """What is on the disk has changed."""

    def on_unmount(self) -> None:
        self._stop_asking.set()  # a hub that is silent need not be waited for

    # Fetching

    def action_download(self) -> None:
        if (listed := self.chosen) and self._may_begin():
            if not listed.entry.repo:
                self.say(NOTHING_ON_HUB.format(listed.name))
            elif damage := self._damage(listed):
                self._repair(listed, damage)
            elif listed.model.state == "present":
                self.say(ALREADY_HERE.format(listed.name))
            else:
                self._fetch(listed.name, listed.entry.repo, listed.entry.revision)

    def _may_begin(self) -> bool:
        """One transfer at a time."""
        if active := self.transfers.active:
            doing, end = ("fetched", "P pauses it") if active.kind == "download" else ("checked", "P stops that")
            self.say(f"{active.name} is being {doing} now. {end}")
        return self.transfers.active is None

    @work(exclusive=True, group="fetch")
    async def _fetch(self, name: str, repository: str, revision: str, *, asks: bool = True) -> None:
        """Plans, asks where `asks`, and starts."""
        from localmoe.hub.download.plan import DownloadPlan, make_plan
        from localmoe.tui.download_words import plan_lines
        from localmoe.tui.screens.confirm import ConfirmScreen

        self._stop_asking = stop = Flag()
        self.say(f"Asking the hub about {repository} …", "$foreground 60%")
        notify = self._saying()

        def planned() -> DownloadPlan:
            return make_plan(name, repository, revision, self.transfers.patience, stop, notify)

        try:
            plan = await self.away(planned)
            outlook = await self.away(lambda: self.open_surveyor().outlook(plan))
            plan.require_room()
        except CancelledError:
            return
        except LocalmoeError as error:
            self.say_error(error)
            return
        self.say("")
        lines = list(plan_lines(plan, outlook))
        verb = "download" if plan.missing_bytes else "put it in its place"
        if not asks or await self.app.push_screen_wait(ConfirmScreen("\n".join(lines), verb, "leave it", is_wide=True)):
            self._begin(lambda: self.transfers.download(plan))

    def _saying(self) -> Callable[[str], None]:
        """A `notify` for another thread."""

        def notify(text: str) -> None:
            self.app.call_later(self._say_if_shown, text)

        return notify

    def _say_if_shown(self, text: str) -> None:
        if self.is_attached:
            self.say(text)

    def _begin(self, start: Callable[[], Transfer]) -> None:
        if self._may_begin():  # another one may have begun while this one was asked about
            start()

    def action_pause(self) -> None:
        """Pauses what runs; goes on with what is paused."""
        if active := self.transfers.active:
            active.cancel()
        elif (listed := self.chosen) and (last := self.transfers.of(listed.name)) and last.kind == "download":
            if last.state in ("paused", "failed"):
                self._fetch(listed.name, listed.entry.repo, listed.entry.revision, asks=False)
        else:
            self.say("Nothing is being fetched or checked")

    # Checking and repairing

    def action_check(self) -> None:
        if (listed := self.chosen) and self._may_begin():
            folder = listed.model.path
            if folder is None or listed.model.state == "absent":
                self.say(NOT_HERE.format(listed.name))
            else:
                self._begin(lambda: self.transfers.check(listed.name, folder))

    def _damage(self, listed: Listed) -> Transfer | None:
        """The last check of it, where that found files of the hub damaged."""
        from localmoe.hub.repair import repository_of_folder
        from localmoe.hub.verify import Report

        last = self.transfers.of(listed.name)
        report = last.result if last and last.kind == "check" else None
        is_damaged = isinstance(report, Report) and not report.is_right and bool(repository_of_folder(report.folder))
        return last if is_damaged else None

    @work(exclusive=True, group="fetch")
    async def _repair(self, listed: Listed, check: Transfer) -> None:
        from localmoe.hub.repair import remove_damaged, repository_of_folder
        from localmoe.hub.verify import Report
        from localmoe.tui.screens.confirm import ConfirmScreen

        report = check.result
        assert isinstance(report, Report)
        files = "\n".join(one.file for one in report.findings[:8])
        question = f"Remove what is damaged of {listed.name} and fetch it again?\n{files}"
        if await self.app.push_screen_wait(ConfirmScreen(question, "fetch again", "leave it", is_wide=True)):
            await self.away(lambda: remove_damaged(report))
            self.transfers.forget(listed.name)
            self._fetch(listed.name, repository_of_folder(report.folder), report.folder.name, asks=False)

    # Removing

    def action_remove(self) -> None:
        if listed := self.chosen:
            active = self.transfers.active
            if not listed.entry.repo:
                self.say(NOT_IN_CACHE.format(listed.name))
            elif listed.name == self.open_model:
                self.say(IS_OPEN.format(listed.name))
            elif active and active.name == listed.name:
                self._may_begin()
            else:
                self._remove(listed)

    @work(exclusive=True, group="remove")
    async def _remove(self, listed: Listed) -> None:
        from localmoe.hub.amount import amount
        from localmoe.hub.removal import plan_removal, remove
        from localmoe.tui.screens.confirm import ConfirmScreen

        try:
            removal = await self.away(lambda: plan_removal(listed.entry.repo, None))
            what = f"all {len(removal.commits)} revisions of " if len(removal.commits) > 1 else ""
            question = f"Remove {what}{listed.name} and free {amount(removal.num_bytes)}?\n{removal.folder}"
            if not await self.app.push_screen_wait(ConfirmScreen(question, "remove", "keep it", is_wide=True)):
                return
            await self.away(lambda: remove(removal))
        except LocalmoeError as error:
            self.say_error(error)
            return
        self.transfers.forget(listed.name)
        self.say(f"{listed.name} is removed; {amount(removal.num_bytes)} are free again")
        self.list_again()
