"""What an export was held to, and how it did, as its notes tell it."""

from vitral.config import Config


class Comparison(Config):
    """Answers of an export and of its model to the same images."""

    batch: int
    images: int
    difference: float  # the largest, of any number of an answer
    agreement: float | None  # share of the same top-1; null where answers are features


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
        """The share of the same top-1 among all answers, whatever the batch."""
        shares = [(each.agreement, each.images) for each in self.comparisons if each.agreement is not None]
        return sum(share * images for share, images in shares) / sum(images for _, images in shares) if shares else None

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
