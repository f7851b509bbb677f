"""Findings from the counts alone."""

import re
from dataclasses import replace

import pytest

from vitral.core.errors import DataError
from vitral.data.datasets.files import FileStore
from vitral.data.doctor.checks import class_findings, fault_findings
from vitral.data.samples import Item, Samples, Split


def samples(*notes: str, **counts: tuple[int, int]) -> Samples:
    """A data set of so many images in train and val of each class; no file of it is ever read."""
    splits: tuple[Split, Split] = ("train", "val")
    items = tuple(
        Item(f"{split}/{name}/{number}.jpg", label, split)
        for column, split in enumerate(splits)
        for label, (name, count) in enumerate(counts.items())
        for number in range(count[column])
    )
    return Samples("set", tuple(counts), items, FileStore("nowhere"), notes)


@pytest.mark.parametrize(
    ("counts", "kinds"),
    [
        ({"cat": (10, 1), "dog": (100, 1)}, []),
        ({"cat": (10, 1), "dog": (101, 1)}, ["imbalance"]),
        ({"cat": (9, 1), "dog": (20, 1)}, ["few"]),
        ({"cat": (10, 0), "dog": (20, 1)}, ["missing"]),
        ({"cat": (10, 0), "dog": (20, 0)}, ["unjudged"]),
        ({"cat": (1, 0), "dog": (20, 1)}, ["missing", "imbalance", "few"]),
    ],
)
def test_counts_give_warnings(counts: dict[str, tuple[int, int]], kinds: list[str]) -> None:
    findings = list(class_findings(samples(**counts)))
    assert [finding.kind for finding in findings] == kinds
    assert all(finding.severity == "warning" and finding.hint for finding in findings)


def test_an_imbalance_names_both_ends() -> None:
    (finding,) = class_findings(samples(cat=(10, 1), dog=(2000, 1), eel=(50, 1)))
    assert re.findall(r"dog|cat|eel|[\d,]+", finding.title) == ["dog", "200", "cat", "2,000", "10"]


def test_images_without_labels_are_one_note() -> None:
    unlabeled = replace(samples(cat=(10, 1)), classes=("",), where="my photos")
    (finding,) = class_findings(unlabeled)
    assert (finding.severity, finding.kind) == ("note", "unlabeled")
    assert finding.hint.endswith("vitral predict MODEL 'my photos'")


def test_without_training_images_only_the_notes_remain() -> None:
    (finding,) = class_findings(samples("a note", cat=(0, 3), dog=(0, 2)))
    assert finding.title == "a note"


def test_a_class_that_is_not_in_train_is_left_to_the_faults() -> None:
    assert class_findings(samples("no images in train: elk", cat=(10, 1), elk=(0, 2))) == []


def fault(where: str, message: str = "broken link", hint: str = "remove it") -> DataError:
    return DataError(message, code="data.broken_link", where=where, hint=hint)


def test_a_fault_is_an_error_with_its_place_hint_and_code() -> None:
    (finding,) = fault_findings([fault("photos/1.jpg")])
    assert (finding.severity, finding.kind, finding.code) == ("error", "structure", "data.broken_link")
    assert (finding.title, finding.hint) == ("photos/1.jpg: broken link", "remove it")


def test_faults_with_the_same_code_and_hint_are_one_finding() -> None:
    same, other = fault_findings([fault("a"), fault("b"), fault("c", hint="mend it"), fault("d")])
    assert (same.count, other.count) == (3, 1)
    assert [example.detail for example in same.examples] == ["a: broken link", "b: broken link", "d: broken link"]


def test_the_notes_of_the_source_are_notes() -> None:
    (finding,) = class_findings(samples("left out: raw", cat=(10, 1), dog=(10, 1)))
    assert (finding.severity, finding.kind, finding.title) == ("note", "source", "left out: raw")


def test_what_the_source_said_already_is_told_once() -> None:
    (finding,) = class_findings(samples("no images in val: cat", cat=(10, 0), dog=(10, 1)))
    assert (finding.severity, finding.title) == ("warning", "no images in val: cat")
