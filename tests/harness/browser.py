"""Chromium without a window, driven through its debugging pipe: no package is needed, and no port is opened."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe --disable-dev-shm-usage".split()
)
OUTSIDE = ("http:", "https:", "ws:", "wss:")


class Browser:
    """One page in a browser, as a context.

    Attributes:
        asked: the addresses outside this machine that pages asked for.
        errors: what scripts of pages raised or wrote as errors.
    """

    def __init__(self):
        self.asked, self.errors, self._number = [], [], 0

    def __enter__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="conformance-browser-", ignore_cleanup_errors=True)
        profile = f"--user-data-dir={self._profile.name}"
        ours, theirs = os.pipe(), os.pipe()  # what it reads, and what it writes
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{ours[0]} 4>&{theirs[1]}', "bash", CHROMIUM, *FLAGS, profile, "about:blank"],
            pass_fds=(ours[0], theirs[1]),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._to, self._from, self._rest = os.fdopen(ours[1], "wb", 0), theirs[0], b""
        self._session = None
        found = self.send("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in found if one["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._to.close()
        os.close(self._from)
        self._profile.cleanup()

    def send(self, method, **parameters):
        """Send a command of the DevTools protocol; returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        self._to.write(json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _message(self):
        while b"\0" not in self._rest:
            more = os.read(self._from, 2**20)
            assert more, "the browser ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        said = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent" and said["request"]["url"].startswith(OUTSIDE):
            self.asked.append(said["request"]["url"])
        if event["method"] == "Runtime.exceptionThrown" or said.get("entry", {}).get("level") == "error":
            self.errors.append(said)

    def look(self, width=1600, height=1000, *, dark=False, scripts=True):
        """Set the size of the view, the colours that a person prefers, and whether scripts run."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, path, address=""):
        """Load a file, and wait until it is drawn."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=Path(path).resolve().as_uri() + address)
        while self.run("document.readyState + location.protocol") != "completefile:":
            pass

    def run(self, script):
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key):
        """Press a key such as "a", "Enter" or "ArrowDown"."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path):
        """Write a picture of the view."""
        Path(path).write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
