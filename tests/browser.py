"""A headless Chromium for tests of pages, spoken to over a pipe in its DevTools protocol; needs nothing but the browser."""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60.0
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --disable-dev-shm-usage --hide-scrollbars"
).split()


def chromium() -> str:
    """The browser's path; where there is none the test is skipped, or fails if MLESS_BROWSER says "required" (CI)."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None or os.name != "posix":
        end = pytest.fail if os.environ.get("MLESS_BROWSER") == "required" else pytest.skip
        end(f"no headless browser here ({', '.join(NAMES)}); `make browser` installs one where it can")
    return found


@dataclass
class Page:
    """One tab: what it logged, threw, was refused and asked for since it was opened."""

    browser: "Browser"
    session: str
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, session=self.session, **parameters)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, which may be a promise."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until a JavaScript expression is true, and give it."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if value := self.run(expression):
                return value
            time.sleep(0.05)
        raise AssertionError(f"not true within {SECONDS} s: {expression}")

    def press(self, key: str) -> None:
        """A key, as the keyboard sends it."""
        for event in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=event, key=key, code=key)

    def note(self, method: str | None, facts: dict[str, Any]) -> None:
        """Keep what an event says that this tab asked for or complained about."""
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(facts["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(facts["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if facts["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(facts["args"]))
            case "Log.entryAdded" if facts["entry"]["level"] in ("error", "warning"):
                self.errors.append(facts["entry"]["text"])


class Browser:
    """A running Chromium; a message is one line of JSON that ends with a zero byte."""

    def __init__(self, folder: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        pipes = f'exec "$@" 3</dev/fd/{to_read} 4>/dev/fd/{to_write}'  # Chromium reads from 3 and answers on 4
        options = [*FLAGS, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        quiet: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        command = ["/bin/sh", "-c", pipes, "sh", chromium(), *options]
        self._process = subprocess.Popen(command, pass_fds=(to_read, to_write), **quiet)
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self._pages = 0, b"", {}

    def call(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + SECONDS
        while True:
            answer = self._next(end - time.monotonic())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, seconds))
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                raise AssertionError(f"the browser said nothing for {SECONDS} s, or ended")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        if (page := self._pages.get(message.get("sessionId"))) is not None:
            page.note(message.get("method"), message.get("params", {}))
        return message

    def open(self, path: Path, *, width: int = 1200) -> Page:
        """A file in a new tab (below 600 pixels a phone's), loaded, everything it asks for and complains about noted."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        window = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        page.call("Emulation.setDeviceMetricsOverride", **window)
        page.call("Page.navigate", url=path.resolve().as_uri())
        page.until(f"document.readyState === 'complete' && location.href === {json.dumps(path.resolve().as_uri())}")
        return page

    def close(self) -> None:
        try:
            self.call("Browser.close")
        except (AssertionError, OSError):
            self._process.kill()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser whose profile lives in `folder`; without one, as `chromium` says."""
    chromium()
    running = Browser(folder)
    try:
        yield running
    finally:
        running.close()
