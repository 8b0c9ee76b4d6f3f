"""A real browser without a window, where one is installed: pages are opened, measured, clicked and typed at."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
SANDBOX = [] if os.name != "posix" or os.geteuid() else ["--no-sandbox"]


class Browser:
    """Chromium spoken to over its debugging pipe: nothing listens on a port.

    Attributes:
        requests: every address that was asked for since the last `open`. errors: what the console was told.
    """

    def __init__(self, profile: Path, patience: float = 60.0):
        (self.read, other), (ours, self.write) = os.pipe(), os.pipe()
        command = [
            BROWSER,
            "--headless",
            *SANDBOX,
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-extensions",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        # the browser reads commands from descriptor 3 and answers on descriptor 4
        high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in (ours, other)]
        files = [(os.POSIX_SPAWN_DUP2, one, number) for one, number in zip(high, (3, 4), strict=True)]
        files += [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        self.process = os.posix_spawn(BROWSER, command, os.environ, file_actions=files)
        for one in (ours, other, *high):
            os.close(one)
        self.patience = patience
        self.rest, self.number, self.session, self.loaded = b"", 0, None, False
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *args: Any) -> None:
        os.kill(self.process, signal.SIGTERM)
        os.waitpid(self.process, 0)
        os.close(self.read)
        os.close(self.write)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            actual = self._receive()
            if actual.get("id") == self.number:
                assert "error" not in actual, (method, actual["error"])
                return actual["result"]

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + self.patience
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self.read, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError(f"the browser said nothing for {self.patience:g} s, or ended")
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\0")
        actual = json.loads(line)
        method, params = actual.get("method"), actual.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded":
            self.errors.append(params["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.errors.append(f"a dialog: {params['message']}")
        elif method == "Page.loadEventFired":
            self.loaded = True
        return actual

    def open(self, path: Path, width: int = 1400, height: int = 900, scheme: str = "light") -> None:
        """Load a page at a size in CSS pixels and in a colour scheme, to the end."""
        self.requests.clear()
        self.errors.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.loaded = False
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not self.loaded:
            self._receive()

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is in the page."""
        actual = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in actual, actual["exceptionDetails"]
        return actual["result"].get("value")

    def click(self, element: str) -> None:
        """A click of the mouse at the middle of an element, which an expression gives."""
        self.value(f"{element}.scrollIntoView({{block: 'center', inline: 'center', behavior: 'instant'}})")
        x, y = self.value(
            f"(() => {{const b = {element}.getBoundingClientRect();return [b.x + b.width / 2, b.y + b.height / 2]}})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key goes down and up."""
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )
