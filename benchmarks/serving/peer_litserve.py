"""The model on LitServe: `python -m benchmarks.serving.peer_litserve BUNDLE engine|torch ENGINE PORT`."""

import sys
from typing import Any

import litserve
import numpy as np
from fastapi import Request

from benchmarks.serving.peer_model import PeerModel


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Decodes, gathers and runs, as the documentation of LitServe has it."""

    def setup(self, device: str) -> None:
        self.peer = PeerModel(*sys.argv[1:4])

    def decode_request(self, request: Request) -> Any:
        form: Any = request  # LitServe reads the type of the parameter, but passes the form
        return self.peer.pixels(form["request"].file.read())

    def batch(self, inputs: list[Any]) -> Any:
        return np.stack(inputs)

    def predict(self, batch: Any) -> Any:
        return self.peer.run(batch)

    def unbatch(self, output: Any) -> list[Any]:
        return list(output)

    def encode_response(self, output: Any) -> dict[str, Any]:
        return self.peer.answer(output)


if __name__ == "__main__":
    api = Api(max_batch_size=32, batch_timeout=0.005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[4]), generate_client_file=False, log_level="error")
