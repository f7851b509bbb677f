"""What an export was held to, and how it did, as its notes tell it."""

from vitral.config import Config


class Comparison(Config):
    """Answers of an export and of its model to the same images."""

    batch: int
    images: int
    difference: float  # the largest, of any number of an answer
    agreement: float | None  # share of the same top-1; null where answers are features

    @property
    def changed(self) -> int:
        """How many images have another top-1."""
        return 0 if self.agreement is None else round(self.images * (1 - self.agreement))


class Accuracy(Config):
    """Shares of right answers."""

    model: float
    export: float


class Certificate(Config):
    """What an export was held to, and how it did."""

    bound: str
    images: str  # which they were
    comparisons: tuple[Comparison, ...]  # by batch
    accuracy: Accuracy | None  # null where the images are not of the model's classes

    @property
    def difference(self) -> float:
        """The largest difference of all."""
        return max(each.difference for each in self.comparisons)

    @property
    def agreement(self) -> float | None:
        """The share of images of the same top-1 in the largest batch, in which all of them were asked about."""
        return max(self.comparisons, key=lambda each: each.batch).agreement

    def lines(self) -> list[str]:
        """The certificate in words."""
        batches = ", ".join(str(each.batch) for each in self.comparisons)
        lines = [f"judged by {self.images}, in batches of {batches}; {self.bound}"]
        lines.append(f"largest difference of a number: {self.difference:.1e}")
        if self.agreement is not None:
            lines.append(f"the same top-1: {self.agreement:.2%}")
        if self.accuracy is not None:
            lines.append(f"accuracy: {self.accuracy.model:.2%} of the model, {self.accuracy.export:.2%} of the export")
        return lines
