"""Reads a page as a browser would, and minds what a browser forgives."""

from html.parser import HTMLParser

# Tags that HTML leaves open.
VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """What is on a page; a tag that is not closed in its turn is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def images(self) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag == "img"]
