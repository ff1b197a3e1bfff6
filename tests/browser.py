"""A page in headless Chromium, driven through its debugging pipe; no package is needed for it."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Chromium expects its pipe at descriptors 3 and 4.
PLACED = """
import fcntl, os, sys
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
for to, fd in zip((3, 4), high):
    os.dup2(fd, to)
os.execv(sys.argv[3], sys.argv[3:])
"""


def found() -> str | None:
    """The path of a Chromium, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page of a browser; messages are JSON that ends with a zero byte."""

    def __init__(self, to: IO[bytes], back: IO[bytes]) -> None:
        self.to, self.back = to, back
        self.number, self.events, self.session = 0, [], None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The browser's answer to a command; what it tells meanwhile is kept in `events`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.to.write(json.dumps(message).encode() + b"\0")
        self.to.flush()
        while (answer := self._next()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self.back.read(1)) not in (b"\0", b""):
            text += byte
        assert byte, "the browser has gone"
        return json.loads(text)

    def open(self, path: Path, width: int = 1000, scheme: str = "light", media: str = "") -> None:
        """Load a file in a window of this width, in a colour scheme, on the screen or for print."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=wanted)
        self.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript evaluates to."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"]

    def requests(self) -> list[str]:
        """The addresses that the page has asked for, its own and data inside of it left out."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        asked = [event["params"]["request"]["url"] for event in sent]
        return [url for url in asked if not url.startswith(("data:", "file:"))]

    def screenshot(self, path: Path) -> None:
        """Write the whole page, from top to end, as a PNG."""
        taken = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def pdf(self) -> bytes:
        """The page in print."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=False)["data"])


@contextlib.contextmanager
def browser(executable: str, profile: Path) -> Iterator[Page]:
    """A page of a browser of its own, which ends with the context."""
    (theirs_in, to), (back, theirs_out) = os.pipe(), os.pipe()

    command = [
        executable, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--remote-debugging-pipe",
    ]  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-c", PLACED, str(theirs_in), str(theirs_out), *command],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        with os.fdopen(to, "wb") as commands, os.fdopen(back, "rb") as answers:
            yield Page(commands, answers)
    finally:
        child.terminate()
        child.wait(30)
