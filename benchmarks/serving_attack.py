"""`python -m benchmarks.serving_attack`: hostile requests to a real server: 4xx with JSON, never 500, memory flat.

Seeded bodies of many families go to `vitral serve` in a process of its own: cut and flipped images, bombs, forms and
JSON that are broken, wrong types, too many parts, names with NUL, too large, too slow, and what is not HTTP. Then
schemathesis asks what the server's own OpenAPI description allows and what it forbids. Prints a table; the exit code
is 1 if any answer was wrong.

  python -m benchmarks.serving_attack                        12,000 bodies, and schemathesis
  python -m benchmarks.serving_attack --count 600 --examples 20 --json attack.json
"""

import argparse
import base64
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread, local
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from benchmarks.attack import images
from benchmarks.serving.process import ServeProcess, about, resident, tiny_bundle

CLIENTS = 4
CHUNK = 400  # requests that are made at a time
FLAT_MEGABYTES = 60
STALL_SECONDS = 5.0  # of /healthz beside the attack, at most
SLOW_SECONDS = 20.0
SCHEMATHESIS = "from schemathesis.cli import schemathesis; schemathesis()"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


class Hostile(NamedTuple):
    """A request, and which answers to it are right."""

    family: str
    path: str
    body: bytes
    headers: Mapping[str, str]
    method: str = "POST"
    may_answer: bool = False  # a mutated image may still be one


class Verdict(NamedTuple):
    """What came of a request; `fault` is empty where the answer was right."""

    family: str
    status: int
    code: str
    fault: str


class Memory(NamedTuple):
    """Resident megabytes."""

    server: int
    all: int  # with its decoders


PATHS = ("/v1/predict", "/v1/explain?maps=rollout", "/v1/features", "/v1/predict?top=3")
JPEG = {"Content-Type": "image/jpeg"}


def form(parts: list[tuple[bytes, bytes, bytes]], boundary: bytes = b"cut") -> tuple[bytes, dict[str, str]]:
    """A form of fields, file names and contents."""
    body = b"".join(
        b'--%s\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\n\r\n%s\r\n' % (boundary, *part)
        for part in parts
    )
    return body + b"--%s--\r\n" % boundary, {
        "Content-Type": f"multipart/form-data; boundary={boundary.decode('latin-1')}"
    }


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Bytes with a few faults: flipped, cut out, repeated or inserted."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(changed) or 1)
        match rng.randrange(4):
            case 0 if changed:
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                del changed[place : place + rng.randint(1, 64)]
            case 2:
                changed[place:place] = changed[place : place + rng.randint(1, 64)]
            case _:
                changed[place:place] = rng.randbytes(rng.randint(1, 16))
    return bytes(changed)


def infer_request(image: bytes) -> dict[str, Any]:
    """A request of the Open Inference Protocol."""
    data = base64.b64encode(image).decode()
    return {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [data]}]}


def spoil(value: Any, rng: random.Random) -> Any:
    """A JSON value with one part of it replaced by another type or an extreme."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        return {name: spoil(part, rng) if name == key else part for name, part in value.items()}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [spoil(part, rng) if index == place else part for index, part in enumerate(value)]
    odd: list[Any] = [None, True, -1, 0, 2**63, 1e308, "", "\0", "é" * 9, [], {}, [[]], {"a": {"b": []}}, "x" * 5000]
    return rng.choice(odd)


def hostile_files() -> list[bytes]:
    """The bombs of `benchmarks.attack`."""
    found = []
    with TemporaryDirectory() as folder:
        for number, case in enumerate(images.hostile()):
            home = Path(folder) / str(number)
            home.mkdir()
            made = case.make(home)
            if made.is_file() and made.stat().st_size < 9_000_000:  # a folder has the same file among good ones
                found.append(made.read_bytes())
    return found


def requests(count: int, seed: int) -> Iterator[Hostile]:
    """So many requests, of all families in turn."""
    rng = random.Random(seed)
    good = [images.encoded(kind, number) for number, kind in enumerate(images.FORMATS)]
    bombs = hostile_files()
    makers: list[Callable[[], Hostile]] = [
        lambda: Hostile("cut images", path(rng), cut(rng.choice(good), rng), JPEG, may_answer=True),
        lambda: Hostile("flipped images", path(rng), mutate(rng.choice(good), rng), JPEG, may_answer=True),
        lambda: Hostile("bombs", path(rng), rng.choice(bombs), JPEG, may_answer=True),
        lambda: Hostile("random bytes", path(rng), rng.randbytes(rng.randint(0, 3000)), JPEG),
        lambda: wrong_type(rng, rng.choice(good)),
        lambda: broken_form(rng, rng.choice(good)),
        lambda: odd_names(rng, rng.choice(good)),
        lambda: many_parts(rng, rng.choice(good)),
        lambda: broken_json(rng, rng.choice(good)),
        lambda: broken_binary(rng, rng.choice(good)),
        lambda: odd_parameters(rng, rng.choice(good)),
        lambda: wrong_method(rng, rng.choice(good)),
    ]
    for number in range(count):
        yield makers[number % len(makers)]()
    for _ in range(max(2, count // 600)):
        yield Hostile("11 MB", path(rng), bytes(11_000_000), JPEG)
    for _ in range(max(7, count // 100)):
        yield heavy_json(rng, rng.choice(good))


def path(rng: random.Random) -> str:
    return rng.choice(PATHS)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def wrong_type(rng: random.Random, image: bytes) -> Hostile:
    kinds = (
        "",
        "text/html",
        "application/json",
        "multipart/mixed",
        "image",
        "*/*",
        "application/x-www-form-urlencoded",
    )
    return Hostile("wrong types", path(rng), image, {"Content-Type": rng.choice(kinds)})


def broken_form(rng: random.Random, image: bytes) -> Hostile:
    body, headers = form([(b"image", b"a.jpg", image[:400])])
    return Hostile("broken forms", path(rng), mutate(body, rng), headers, may_answer=True)


def odd_names(rng: random.Random, image: bytes) -> Hostile:
    names = (
        b"\0",
        b"a\0b.jpg",
        b"../../etc/passwd",
        b"\xff\xfe",
        b"x" * 3000,
        b"%s%n",
        "\N{RIGHT-TO-LEFT OVERRIDE}".encode(),
    )
    fields = (b"image", b"\0", b"file", b"", b"image\0", b"x" * 3000)
    body, headers = form([(rng.choice(fields), rng.choice(names), image)])
    return Hostile("odd names", path(rng), body, headers, may_answer=True)


def many_parts(rng: random.Random, image: bytes) -> Hostile:
    body, headers = form([(b"image", b"a.jpg", image[:100])] * rng.choice((33, 100, 1000)))
    return Hostile("too many parts", path(rng), body, headers)


def broken_json(rng: random.Random, image: bytes) -> Hostile:
    body = json.dumps(spoil(infer_request(image), rng)).encode()
    if rng.random() < 0.3:
        body = mutate(body, rng)
    if rng.random() < 0.05:
        lists = b'{"inputs": [' + b"[]," * 1_000_000 + b"[]]}"
        body = rng.choice((b"[" * 50_000, b'{"a":' * 50_000, b'"' + b"\\u0000" * 9000, lists))
    return Hostile("broken JSON", "/v2/models/tiny/infer", body, {"Content-Type": "application/json"}, may_answer=True)


def heavy_json(rng: random.Random, image: bytes) -> Hostile:
    """Megabytes of JSON that would stop a server for long if it read or checked all of them."""
    usual = infer_request(image)["inputs"][0]
    many = rng.choice((100_000, 1_000_000))
    heavy: list[dict[str, Any]] = [
        {"inputs": [usual | {"shape": [2**20] * many}]},
        {"inputs": [usual | {"shape": ["x"] * many}]},
        {"inputs": [usual | {"shape": [many], "data": [""] * many}]},
        {"inputs": [usual | {"data": [1] * many}]},
        {"inputs": [usual], "outputs": [{"name": "probabilities"}] * (many // 20)},
        {"inputs": [usual], "outputs": [1] * many},
        {"inputs": [usual], "parameters": dict.fromkeys(map(str, range(many // 2)), 1)},
    ]
    body = json.dumps(rng.choice(heavy), separators=(",", ":")).encode()
    return Hostile("heavy JSON", "/v2/models/tiny/infer", body, {"Content-Type": "application/json"})


def broken_binary(rng: random.Random, image: bytes) -> Hostile:
    size = rng.choice((len(image) + 4, 0, -1, 2**40, "many", len(image)))
    head = {"name": "image", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [head]}).encode()
    tail = rng.randrange(2**32).to_bytes(4, "little") + image
    length = rng.choice((str(len(text)), "0", "-5", "9" * 30, str(len(text) + 3), "x", "\u00b2"))
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": length}
    latin = {name: value.encode("utf-8").decode("latin-1") for name, value in headers.items()}
    return Hostile("broken binary tensors", "/v2/models/tiny/infer", text + tail, latin)


def odd_parameters(rng: random.Random, image: bytes) -> Hostile:
    query = rng.choice(
        (
            "top=-1", "top=1e9", "top=", "model=%00", "model=../../etc", "model=" + "x" * 3000, "maps=,,", "head=-1",
            "query=99999999999999999999", "query=%F0%9F", "label=%FF%FE", "format=exe", "layer=999", "top=5&top=x",
            "a=b&" * 200 + "top=0", "label=" + "9" * 5000,
        )
    )  # fmt: skip
    route = rng.choice(("/v1/predict", "/v1/explain"))
    return Hostile("odd parameters", f"{route}?{query}", image, JPEG, may_answer=True)


def wrong_method(rng: random.Random, image: bytes) -> Hostile:
    method = rng.choice(("GET", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "NONSENSE"))
    return Hostile("wrong methods", rng.choice(("/v1/predict", "/v1/explain")), image[:100], JPEG, method)


CONNECTIONS = local()


def send(url: str, request: Hostile) -> Verdict:
    """Send a request over the connection of this thread, and judge the answer."""
    parts = urlsplit(url)
    connection = getattr(CONNECTIONS, "own", None)
    if connection is None:
        connection = CONNECTIONS.own = HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.request(request.method, request.path, request.body, dict(request.headers))
        answer = connection.getresponse()
        content, kind, status = answer.read(), answer.getheader("content-type", ""), answer.status
    except (OSError, HTTPException) as error:
        connection.close()
        CONNECTIONS.own = None
        return Verdict(request.family, 0, type(error).__name__, f"no answer: {error!r}")
    return judge(request, status, kind, content)


def judge(request: Hostile, status: int, kind: str, content: bytes) -> Verdict:
    """Whether an answer is one that a server should give."""
    code = ""
    if status >= 400:
        try:
            code = json.loads(content)["code"] if kind == "application/problem+json" else ""
        except (ValueError, KeyError):
            code = ""
    if 200 <= status < 300:
        fault = "" if request.may_answer else "answered"
    elif status >= 500 and status != 503:
        fault = f"status {status}"
    else:
        fault = "" if code else f"status {status} without a code: {content[:80]!r}"
    return Verdict(request.family, status, code, fault)


def slow_requests(url: str, count: int) -> list[Verdict]:
    """Requests whose bodies or headers never end, all at once; they have to be given up."""
    parts = urlsplit(url)
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length: 1000\r\n\r\n"
    clients = []
    for number in range(count):
        client = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=SLOW_SECONDS)
        client.sendall(head + b"x" * (number % 50) if number % 2 else head[: 10 + number % 60])
        clients.append(client)
    return [judge_raw("too slow", client) for client in clients]


def not_http(url: str, count: int, seed: int) -> list[Verdict]:
    """Bytes that are no request."""
    rng, parts, found = random.Random(seed), urlsplit(url), []
    for _ in range(count):
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=SLOW_SECONDS) as client:
            client.sendall(
                rng.choice((b"\x16\x03\x01", b"GET", b"")) + rng.randbytes(rng.randint(1, 200)) + b"\r\n\r\n"
            )
            found.append(judge_raw("not HTTP", client))
    return found


def tiny_chunks(url: str, count: int) -> list[Verdict]:
    """Bodies that are cut into chunks of one byte."""
    parts, found = urlsplit(url), []
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    for _ in range(count):
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=SLOW_SECONDS) as client:
            with suppress(ConnectionError):  # it need not read all of it
                client.sendall(head + b"1\r\nx\r\n" * 100_000)
            found.append(judge_raw("tiny chunks", client))
    return found


def judge_raw(family: str, client: socket.socket) -> Verdict:
    """What came over a bare connection."""
    try:
        content = client.makefile("rb").read()
    except OSError as error:
        return Verdict(family, 0, type(error).__name__, f"no answer: {error!r}")
    finally:
        client.close()
    status = int(content.split()[1]) if content.startswith(b"HTTP/1.1 ") else 0
    code = re.search(rb'"code": "([a-z_.]+)"', content)
    fault = "" if 400 <= status < 500 and code else f"status {status}: {content[:80]!r}"
    return Verdict(family, status, code[1].decode() if code else "", fault)


def fuzz_description(url: str, examples: int) -> tuple[str, bool]:
    """What schemathesis finds: its last lines, and whether nothing was wrong."""
    words = ["run", f"{url}/openapi.json", "--checks", CHECKS, "--max-examples", str(examples), "--seed", "1"]
    words += ["--request-timeout", "30", "--no-color"]
    with TemporaryDirectory() as folder:  # where it keeps its own notes
        command = [sys.executable, "-c", SCHEMATHESIS, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    return "\n".join(done.stdout.splitlines()[-40:]), done.returncode == 0


def table(verdicts: list[Verdict]) -> list[str]:
    """A line for each family: tried, answered, refused by status, wrong."""
    by_family: dict[str, list[Verdict]] = defaultdict(list)
    for each in verdicts:
        by_family[each.family].append(each)
    lines = ["| requests | sent | answered | refused | wrong |", "|---|---|---|---|---|"]
    for family, found in by_family.items():
        statuses = Counter(each.status for each in found if each.status >= 400)
        refused = ", ".join(f"{status}: {number}" for status, number in sorted(statuses.items()))
        answered, wrong = sum(200 <= each.status < 300 for each in found), sum(bool(each.fault) for each in found)
        lines.append(f"| {family} | {len(found):,} | {answered:,} | {refused} | {wrong} |")
    total = sum(bool(each.fault) for each in verdicts)
    return [*lines, f"| all | {len(verdicts):,} | | | {total} |"]


def send_all(server: ServeProcess, count: int, seed: int) -> tuple[list[Verdict], list[Memory]]:
    """Send the requests, a few at a time; also the memory of the server after each tenth of them."""
    verdicts: list[Verdict] = []
    memory: list[Memory] = []
    waiting = requests(count, seed)
    with ThreadPoolExecutor(CLIENTS) as pool:
        while chunk := list(islice(waiting, CHUNK)):
            verdicts += pool.map(lambda each: send(server.url, each), chunk)
            if len(verdicts) >= count / 10 * (len(memory) + 1):
                memory.append(memory_of(server))
                wrong = sum(bool(each.fault) for each in verdicts)
                print(f"{len(verdicts):,} requests, {wrong} wrong answers, {memory[-1].server} MB", file=sys.stderr)
    return verdicts, memory


def memory_of(server: ServeProcess) -> Memory:
    """The memory of a server and of the processes below it."""
    return Memory(round(resident(server.process.pid)), round(server.megabytes()))


class Watch:
    """Asks a server whether it runs, every tenth of a second while the `with` lasts; how long it took at most."""

    def __init__(self, url: str) -> None:
        self.place, self.ended, self.seconds = urlsplit(url), Event(), list[float]()
        self.thread = Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join()

    def _work(self) -> None:
        while not self.ended.wait(0.1):
            start = time.monotonic()
            connection = HTTPConnection(self.place.hostname or "", self.place.port, timeout=60)
            with suppress(OSError, HTTPException):
                connection.request("GET", "/healthz")
                connection.getresponse().read()
            connection.close()
            self.seconds.append(time.monotonic() - start)

    def summary(self) -> str:
        """The times in words."""
        ranked = sorted(self.seconds)
        middle, late = ranked[len(ranked) // 2], ranked[int(len(ranked) * 0.99)]
        return (
            f"/healthz beside them: median {1000 * middle:.0f} ms, p99 {1000 * late:.0f} ms, at most {ranked[-1]:.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=12_000, help="hostile bodies")
    parser.add_argument("--slow", type=int, default=100, help="clients that never finish their request")
    parser.add_argument("--examples", type=int, default=100, help="of schemathesis, for each operation; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="", help="also write the results to this file")
    given = parser.parse_args()
    with TemporaryDirectory(prefix="serving-attack-") as folder:
        model = tiny_bundle(Path(folder) / "tiny")
        with ServeProcess(f"tiny={model}", "--engine", "eager") as server:
            start = time.monotonic()
            with Watch(server.url) as watch:
                verdicts, memory = send_all(server, given.count, given.seed)
                verdicts += not_http(server.url, max(10, given.count // 60), given.seed)
                verdicts += tiny_chunks(server.url, max(5, given.count // 600))
                verdicts += slow_requests(server.url, given.slow)
            memory.append(memory_of(server))
            text, sound = fuzz_description(server.url, given.examples) if given.examples else ("", True)
            good = Hostile("a good one at the end", "/v1/predict", images.encoded("jpeg", 0), JPEG, may_answer=True)
            alive = send(server.url, good)
            memory.append(memory_of(server))
            seconds = time.monotonic() - start
    lines = table([*verdicts, alive])
    told = ", ".join(f"{each.server} of {each.all}" for each in memory)
    lines += [f"memory of the server, of it with its decoders, in MB, after each tenth and at the end: {told}"]
    lines += [watch.summary(), f"{len(verdicts):,} requests in {seconds:.0f} s"]
    print("\n".join([*lines, text]))
    faults = [each for each in verdicts if each.fault]
    for each in faults[:20]:
        print(f"{each.family}: {each.fault}")
    if given.json:
        result = {
            **about(),
            "lines": lines,
            "memory": memory,
            "faults": [each._asdict() for each in faults],
            "schemathesis": {"sound": sound, "lines": text.splitlines()},
        }
        Path(given.json).write_text(json.dumps(result, indent=2))
    grown = memory[-1].server - memory[0].server > FLAT_MEGABYTES
    stalled = max(watch.seconds) > STALL_SECONDS
    sys.exit(int(bool(faults) or alive.status != 200 or grown or stalled or not sound))


if __name__ == "__main__":
    main()
