"""The contents of the data of a run: hashed beside its first steps, recorded, and compared when it is resumed."""

import json
import logging

from vitral.core.errors import DataError
from vitral.core.storage import write_file_atomically
from vitral.data.contents import ContentHash
from vitral.data.samples import Samples
from vitral.runs.folder import RunFolder
from vitral.training.loop import StepResult

log = logging.getLogger("vitral")
UNKNOWN = "the contents of the data were not hashed before the run stopped: only names, labels and sizes are compared"


class ContentRecorder:
    """The callback that records the hash in fingerprint.json once it is complete; for the main process."""

    def __init__(self, folder: RunFolder, samples: Samples) -> None:
        self.folder = folder
        self.content = self._read()  # the hash; empty if it is not known yet
        self._hash = ContentHash(samples)

    def verify(self, saved: str, resumed: bool) -> None:
        """Refuse data with other contents than those that were recorded here or with the checkpoint."""
        if self.content and saved and self.content != saved:
            message, hint = "is not the fingerprint of the newest checkpoint", "restore the file"
            raise DataError(message, code="data.changed", where=self.folder.fingerprint, hint=hint)
        recorded = self.content or saved
        if not self._hash.is_known or not resumed:
            return
        if not recorded:
            log.info(UNKNOWN)
            return
        if self._hash.wait() != recorded:
            message = "the contents of images have changed since the run started, though names and sizes have not"
            hint = f"restore the files that {self.folder.split} lists, or start a new run"
            raise DataError(message, code="data.changed", where=self._hash.samples.where, hint=hint)
        self._record(recorded)

    def due(self, step: int, steps: int) -> bool:
        return not self.content and self._hash.is_known

    def run(self, step: int, result: StepResult) -> None:
        self._record(self._hash.poll())

    def finish(self) -> None:
        """Wait for the hash."""
        if not self.content and self._hash.is_known:
            self._record(self._hash.wait())

    def close(self) -> None:
        """Stop hashing."""
        self._hash.close()

    def _record(self, content: str) -> None:
        if content and content != self._read():
            record = json.dumps({"format": 1, "content": content})
            write_file_atomically(self.folder.fingerprint, record + "\n")
        self.content = content or self.content

    def _read(self) -> str:
        try:
            found = json.loads(self.folder.fingerprint.read_bytes())["content"]
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError):
            message, hint = "is damaged: vitral did not write it like this", "restore the file"
            raise DataError(message, code="data.changed", where=self.folder.fingerprint, hint=hint) from None
        return str(found)
