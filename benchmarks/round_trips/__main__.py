"""`python -m benchmarks.round_trips`: every format to every library and back, with what came back.

Small models with random weights, as a file of each format that holds them, go the way source, bundle, target, bundle,
source. A trip is `equal` if every bit and every setting came back, `named` if the certificates on the way name
everything that did not, `refused` if the target cannot hold the model and the error says why. All else is `WRONG`.

  python -m benchmarks.round_trips --source timm,google --subject hybrid --json trips.jsonl
  python -m benchmarks.round_trips --oracles      the libraries run on every file; needs the Python of `make bench`
  python -m benchmarks.round_trips --json trips.jsonl --report               the table of what is there
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.round_trips.libraries import Libraries
from benchmarks.round_trips.subjects import SUBJECTS, Subject
from vitral.core.config import parse_settings
from vitral.core.errors import ConfigError, WeightsError
from vitral.core.storage import STORAGE
from vitral.models.position import Rope2d
from vitral.models.vit import Vit
from vitral.weights.adapt import config_changes
from vitral.weights.certificate import TOLERANCE, Certificate, read_certificate
from vitral.weights.convert import convert, largest_difference
from vitral.weights.formats.facebook import PERIODS
from vitral.weights.formats.format import Format
from vitral.weights.formats.npz import read_npz
from vitral.weights.formats.registry import FORMATS, WRITABLE
from vitral.weights.formats.rules import Rule, export_tensors
from vitral.weights.load import LoadedModel, OpenedModel, open_model
from vitral.weights.oracles.oracle import OracleAnswer
from vitral.weights.reader import ReadOptions

TARGETS = tuple(name for name in WRITABLE if name != "vitral")
REASONS = ("weights.no_counterpart", "weights.resampling_differs")
BY_NAME = {each.name: each for each in FORMATS}
SILENT = OracleAnswer("", {}, "not asked", opened=False)


@dataclass(frozen=True)
class Trip:
    """What came back of a model from a target."""

    source: str  # a format
    subject: str
    target: str  # a library
    verdict: str  # equal, named, refused, WRONG
    detail: str = ""
    difference: float = 0.0  # of outputs, relative
    libraries: tuple[str, ...] = ()  # that each certificate of a file of another library ran, or why it ran none


class SourceFile:
    """A model as a file of a format, and as the bundle that is read from it."""

    def __init__(self, format: Format, subject: Subject, home: Path) -> None:
        self.format, self.subject, self.home = format, subject, home
        model = subject.model
        self.settings = [f"image_size={model.image_size}", *settings_of(format, model)]
        self.folder = write_source(format, subject.loaded(), home / "source")
        self.opened = self.open(self.folder)
        self.bundle = home / "bundle"

    def open(self, folder: Path) -> OpenedModel:
        return open_model(folder, *self.settings, options=ReadOptions(format=self.format.name))

    def holds_subject(self) -> bool:
        """Whether the file is read as the model that was written."""
        return not config_changes(self.subject.model, self.opened.loaded.bundle.model)


def settings_of(format: Format, model: Vit) -> list[str]:
    """What files of a format do not record."""
    heads = getattr(model.mixer, "heads", 1)
    given = [*format.required_settings(model)]
    asked = format.library in ("facebook", "open_clip") and format.name != "dinov3-facebook"
    given += [f"mixer.heads={heads}"] if asked else []
    return [*given, f"mlp.activation={model.mlp.activation}"] if format.library == "open_clip" else given


def write_source(format: Format, loaded: LoadedModel, folder: Path) -> Path:
    """A file of a format, also of one that is not written for users."""
    model, own = loaded.bundle.model, loaded.model.state_dict()
    assert isinstance(model, Vit)
    tensors = export_tensors(format.rules(model, own), own)
    folder.mkdir(parents=True)
    if format.writable:
        for name, chunks in format.files(loaded.bundle, tensors).items():
            STORAGE.write_file(folder / name, chunks)
    else:
        save_file(tensors | periods(model), folder / "model.safetensors")
    return folder


def periods(model: Vit) -> dict[str, Tensor]:
    """The constants by which facebook's DINOv3 is recognized."""
    if not isinstance(model.position, Rope2d):
        return {}
    count = model.context().head_width // 4
    return {PERIODS: model.position.base ** (torch.arange(count) / count)}


def make_source(format: Format, subject: Subject, home: Path) -> SourceFile | None:
    """The model as a file of the format; None where the format does not hold it as it is."""
    if format.writable and list(format.unsupported(subject.loaded().bundle)):
        return None
    try:
        source = SourceFile(format, subject, home)
    except WeightsError as error:
        if format.writable and error.code not in REASONS:
            raise
        return None  # a tensor is not what the format needs, or the format is only read and says nothing before
    except (ConfigError, AssertionError, KeyError, RuntimeError):
        if format.writable:
            raise
        return None
    return source if source.holds_subject() else None


def sources(home: Path, formats: Sequence[str], subjects: Sequence[str]) -> Iterator[SourceFile]:
    for format in FORMATS:
        for subject in SUBJECTS if format.name in formats else ():
            if subject.name in subjects:
                found = make_source(format, subject, home / f"{format.name}-{subject.name}")
                if found:
                    yield found


def round_trip(source: SourceFile, to: str) -> Trip:
    """Source to bundle, target, bundle and back to the source's library."""
    home = source.home / to
    about = source.format.name, source.subject.name, to
    if not source.bundle.exists():
        settings = parse_settings(source.settings)
        convert(source.folder, source.bundle, settings=settings, format=source.format.name)
    try:
        there = convert(source.bundle, home / "target", to=to).certificate
    except WeightsError as error:
        verdict = "refused" if error.code in REASONS and error.message else "WRONG"
        return Trip(*about, verdict, error.message, libraries=(read_certificate(source.bundle).source_library,))
    format = BY_NAME[there.written.software]
    model = open_model(source.bundle).loaded.bundle.model
    assert isinstance(model, Vit)
    nearest = format.nearest(model)
    settings = parse_settings([f"image_size={nearest.image_size}", *settings_of(format, nearest)])
    read = convert(home / "target", home / "bundle", settings=settings, format=format.name).certificate
    certificates, end = [read_certificate(source.bundle), there, read], home / "bundle"
    rules = [*named_rules(source.opened), *named_rules(open_target(home / "target", format, nearest))]
    if source.format.writable:
        end = home / "back"
        certificates.append(convert(home / "bundle", end, to=source.format.library).certificate)
    first, *back = certificates[0], *certificates[3:]
    libraries = (first.source_library, there.library, read.source_library, *(each.library for each in back))
    return replace(judge(source, about, end, certificates, rules), libraries=libraries)


def open_target(folder: Path, format: Format, model: Vit) -> OpenedModel:
    settings = (f"image_size={model.image_size}", *settings_of(format, model))
    return open_model(folder, *settings, options=ReadOptions(format=format.name))


def named_rules(opened: OpenedModel) -> list[Rule]:
    return opened.source.rules() if opened.source else []


def judge(
    source: SourceFile, about: tuple[str, str, str], end: Path, certificates: Sequence[Certificate], rules: list[Rule]
) -> Trip:
    """Compare what came back with what was there, and both with what the certificates say."""
    back = certificates[-1].written.software
    before = source.opened.loaded
    if end.name == "bundle":
        after = open_model(end).loaded
    else:
        model = open_model(end.parent / "bundle").loaded.bundle.model
        assert isinstance(model, Vit)
        after = open_target(end, BY_NAME[back], BY_NAME[back].nearest(model)).loaded
    changed = changed_names(before.model.state_dict(), after.model.state_dict())
    if back == source.format.name:
        changed |= changed_names(file_tensors(source.folder), file_tensors(end))
    known = {change.name for each in certificates for change in each.tensors}
    for rule in rules * 2:  # a name of ours may lead from one file to the other
        if known & {*rule.ours, *rule.theirs}:
            known |= {*rule.ours, *rule.theirs}
    text = " ".join(line for each in certificates for line in (*each.changed, *each.untold))
    settings = [
        *config_changes(before.bundle.model, after.bundle.model),
        *config_changes(before.bundle.model, after.bundle.model, training=True),
    ]
    silent = [line for line in settings if line.split(" ")[0] not in text] + sorted(changed - known)
    difference = largest_difference(before, after).largest
    if difference > TOLERANCE and "differ by" not in text:
        silent.append(f"outputs differ by {difference:.1e}")
    if silent:
        return Trip(*about, "WRONG", f"not named: {', '.join(silent[:4])}", difference)
    if changed or settings:
        return Trip(*about, "named", "; ".join([*settings[:3], *sorted(changed)[:3]]), difference)
    return Trip(*about, "equal", "", difference)


def file_tensors(folder: Path) -> dict[str, Tensor]:
    npz = folder / "model.npz"
    return read_npz(npz) if npz.exists() else load_file(folder / "model.safetensors")


def changed_names(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> set[str]:
    """The tensors that are not in both, or not with the same bits."""
    return {
        name
        for name in before.keys() | after.keys()
        if name not in before
        or name not in after
        or before[name].shape != after[name].shape
        or not torch.equal(before[name].float().view(torch.int32), after[name].float().view(torch.int32))
    }


def run(formats: Sequence[str], subjects: Sequence[str], targets: Sequence[str], oracles: bool) -> Iterator[Trip]:
    """A trip for each source and target."""
    with ExitStack() as stack:
        for module in () if oracles else ("convert", "verify"):
            stack.enter_context(patch(f"vitral.weights.{module}.run_library", return_value=SILENT))
        if oracles:
            started = stack.enter_context(Libraries())
            stack.enter_context(patch("vitral.weights.oracles.oracle.run_process", started.run))
        home = Path(stack.enter_context(TemporaryDirectory(prefix="round-trips-")))
        for source in sources(home, formats, subjects):
            for to in targets:
                try:
                    yield round_trip(source, to)
                except (WeightsError, ConfigError) as error:
                    yield Trip(source.format.name, source.subject.name, to, "WRONG", f"{error.code}: {error.message}")


def matrix(trips: Sequence[Trip]) -> str:
    """Formats by libraries, in Markdown: how many models came back, and how."""
    targets = list(dict.fromkeys(trip.target for trip in trips))
    lines = [f"| from | {' | '.join(targets)} |", "|---" * (len(targets) + 1) + "|"]
    for source in dict.fromkeys(trip.source for trip in trips):
        cells = []
        for target in targets:
            counts = Counter(trip.verdict for trip in trips if (trip.source, trip.target) == (source, target))
            cells.append(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
        lines.append(f"| {source} | {' | '.join(cells)} |")
    return "\n".join(lines)


def totals(trips: Sequence[Trip]) -> str:
    counts = Counter(trip.verdict for trip in trips)
    return f"{len(trips)} trips: {', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))}"


def read_trips(path: Path) -> list[Trip]:
    """The trips of a file of JSON lines."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Trip(**line | {"libraries": tuple(line["libraries"])}) for line in lines]


def library_counts(trips: Sequence[Trip]) -> list[str]:
    """How often each library ran, or why none did, for the files of the sources and for all others, the most first."""
    lines = []
    firsts = {(trip.source, trip.subject): trip.libraries[:1] for trip in trips}
    others = [trip.libraries[1:] for trip in trips]
    for title, found in (("files of the sources", [*firsts.values()]), ("files on the way", others)):
        counts = Counter(library for each in found for library in each)
        lines += [f"{title}: {counts.total()}", *(f"  {count:4} x {name}" for name, count in counts.most_common())]
    return lines


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.round_trips",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names, kinds = [each.name for each in FORMATS], [each.name for each in SUBJECTS]
    parser.add_argument("--source", default=",".join(names), help="formats, separated by commas (default: all)")
    parser.add_argument("--subject", default=",".join(kinds), help="models, separated by commas (default: all)")
    parser.add_argument("--to", default=",".join(TARGETS), help="libraries, separated by commas (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a JSON line for each trip")
    parser.add_argument("--oracles", action="store_true", help="run the libraries on every file, where installed")
    parser.add_argument("--report", action="store_true", help="print the table of the file and try nothing")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    trips = read_trips(given.json) if given.report else []
    chosen = given.source.split(","), given.subject.split(","), given.to.split(",")
    for trip in () if given.report else run(*chosen, given.oracles):
        trips.append(trip)
        print(f"{trip.source} {trip.subject} -> {trip.target}: {trip.verdict} {trip.detail[:150]}", file=sys.stderr)
        if given.json:
            with given.json.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(trip)) + "\n")
    print("\n".join([matrix(trips), totals(trips), *library_counts(trips)]))
    return any(trip.verdict == "WRONG" for trip in trips)


if __name__ == "__main__":
    sys.exit(main())
