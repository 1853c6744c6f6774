"""Changes what counts as an anomaly while the demo's job runs and is killed: as a person would, with ``weir send``.

The change is sent once a part of the job is committed, again in the next life if the driver dies before it has answered.
Setting a rule twice is setting it once; once it is answered, no kill can take it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from weir.client import connect
from weir.errors import WeirError

#: From which part of the job on it is sent.
_SENT_FROM = 0.25
_POLL_S = 0.2
OPERATOR = "anomalies_by_rule"
#: The rule, as the example has it and as it is changed to.
RULE, BEFORE_MINUTES, AFTER_MINUTES = "minutes", 120, 180


class RuleChange:
    """A thread that sends the change. Use as a context manager."""

    def __init__(
        self, *, address: Callable[[], str | None], done: Callable[[], float], tell: Callable[[str], None]
    ) -> None:
        """``address`` is that of the driver that lives, ``done`` says which part of the job is committed."""
        self._address = address
        self._done = done
        self._tell = tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weir-demo-rule", daemon=True)
        #: Whether it was answered.
        self.answered = False

    def __enter__(self) -> RuleChange:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_POLL_S):
            address = self._address()
            if address is None or self._done() < _SENT_FROM:
                continue
            try:
                with connect("flights", address) as client:
                    answer = client.send(OPERATOR, {"set": {RULE: AFTER_MINUTES}})
            except WeirError:
                # That driver has died, or not begun yet.
                continue
            self.answered = True
            self._tell(
                f"weir send flights {OPERATOR}: a flight is an anomaly from {AFTER_MINUTES} minutes on; {answer}"
            )
            return
