"""The page in a real browser with a real server: it shows what the model says, by mouse, keyboard and touch."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

import vitral
from tests.browser import expect
from tests.data.pictures import encoded
from tests.inference.truth import loaded
from tests.models.variants import small
from tests.serving.client import photo
from tests.serving.page.visit import Visit
from vitral.cli.use.serve import page_address
from vitral.data.transforms.crop import CenterCrop
from vitral.explanation.analysis import analyze
from vitral.explanation.explanation import Analysis
from vitral.html.text import TIMES
from vitral.serving.config import ServeConfig
from vitral.serving.server import Server

REFUSED = ("Failed to load resource",)  # chromium says so of every refusal
COLUMNS = 6
Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def truth() -> vitral.Prediction:
    """What the model says about the photo, without a server."""
    return vitral.Predictor(loaded(small()), engine="eager")(photo(), top=4)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    source = loaded(small())
    return analyze(source.model, source.bundle.transform(photo())[None])


TOKEN = "se'c+r&t%41"
FRAGMENT = page_address("", TOKEN).removeprefix("/")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server with a token, whose model is given the middle of a photo."""
    source = loaded(small())
    needs = source.bundle.preprocessing.model_copy(update={"crop": CenterCrop(fraction=0.5)})
    model = source._replace(bundle=source.bundle.model_copy(update={"preprocessing": needs}))
    with Server({"vit": model}, ServeConfig(port=0, engine="eager", decoders=1, token=TOKEN)) as running:
        yield running


def percent(score: float) -> str:
    return f"{100 * score:.1f}%"


def cell(patch: int) -> str:
    return f"row {patch // COLUMNS + 1}, column {patch % COLUMNS + 1}"


def test_a_dropped_photo_shows_the_prediction_and_the_attention_at_once(
    visit: Open, truth: vitral.Prediction, analysis: Analysis
) -> None:
    page = visit().ready()
    page.part("knows").get_by_text("It knows 4 classes: a, b, c, d.").wait_for()
    page.look(photo(), "<b>cat</b>.jpg")
    page.says(".said", truth.labels[0])
    page.says(".sure", percent(truth.scores[0]))
    expect(page.page.locator(".bars .who")).to_have_text(list(truth.labels))
    expect(page.page.locator(".bars .much")).to_have_text([percent(score) for score in truth.scores])
    row = analysis.layers[-1].attention[:, 0, 1:].mean(axis=0)  # of the class token
    told = f"Layer 2, mean of 2 heads: the prediction attends most to {cell(int(row.argmax()))} ({percent(row.max())})"
    page.tells(".telling", told)
    expect(page.part("canvas")).to_be_visible()
    page.announces(f"Prediction: {truth.labels[0]}, {percent(truth.scores[0])}. Layer 2")
    page.tells(".meta", f"<b>cat</b>.jpg · 48 {TIMES} 40")
    expect(page.page.locator("#visits li")).to_have_count(1)


def test_a_pasted_picture_is_looked_at_too(visit: Open) -> None:
    page = visit().ready()
    page.page.evaluate(
        """async () => {
        const canvas = Object.assign(document.createElement('canvas'), {width: 30, height: 20});
        canvas.getContext('2d').fillRect(0, 0, 9, 9);
        const blob = await new Promise((done) => canvas.toBlob(done));
        await navigator.clipboard.write([new ClipboardItem({'image/png': blob})]);
    }"""
    )
    page.page.keyboard.press("Control+V")
    page.tells(".meta", f"pasted.png · 30 {TIMES} 20")
    expect(page.page.locator("#visits li")).to_have_count(1)  # it is remembered when the maps, too, have come
    expect(page.page.locator(".bars li").first).to_be_visible()


def test_what_is_no_image_is_named_and_the_last_answer_stays(visit: Open, truth: vitral.Prediction) -> None:
    page = visit().ready().look(photo())
    page.excused = REFUSED
    sent = page.questions()
    page.drop(b"hello", "notes.txt", "text/plain")
    page.complains("notes.txt is not an image.")
    page.drop(b"", "empty.jpg")
    page.complains("empty.jpg is empty.")
    page.drop(bytes(200_001), "huge.jpg")
    page.complains("huge.jpg is too large: 0.2 MB.")
    assert page.questions() == sent, "the server was asked about what cannot be right"
    page.says(".said", truth.labels[0])
    page.drop(b"\xff\xd8 not a JPEG", "broken.jpg")
    page.complains("broken.jpg is not an image.")
    page.page.locator(".problem details summary").click()
    page.tells(".problem details p", "(data.")


def test_a_photo_that_the_browser_cannot_show_is_looked_at_all_the_same(visit: Open) -> None:
    page = visit().ready()
    page.drop(encoded(Image.open(BytesIO(photo())), "TIFF"), "scan.tif", "image/tiff")
    page.page.locator(".bars li").first.wait_for()
    expect(page.part("unshown")).to_have_text("This browser cannot show scan.tif; the model can still look at it.")
    page.part("canvas").wait_for()


def test_everything_works_from_the_keyboard(visit: Open, tmp_path: Path, analysis: Analysis) -> None:
    page = visit().ready()
    (tmp_path / "cat.jpg").write_bytes(photo())
    keyboard = page.page.keyboard
    page.page.locator("#theme").focus()
    for _ in range(2):  # the choice of a model, then the button
        keyboard.press("Tab")
    with page.page.expect_file_chooser() as chooser:
        keyboard.press("Space")
    chooser.value.set_files(tmp_path / "cat.jpg")
    expect(page.page.locator("#visits li")).to_have_count(1)
    page.page.locator("#tools button").last.focus()
    for _ in range(2):
        keyboard.press("Tab")
    expect(page.part("grid")).to_be_focused()
    keyboard.press("ArrowUp")  # marks the middle
    for key in ("ArrowUp", "ArrowLeft", "ArrowLeft"):
        keyboard.press(key)
    row = analysis.layers[-1].attention[:, 1 + 1 * COLUMNS + 1, 1:].mean(axis=0)
    page.announces(f"{cell(COLUMNS + 1)} attends most to {cell(int(row.argmax()))}")
    keyboard.press("Escape")
    page.announces("the prediction attends")
    keyboard.press("Tab")
    keyboard.press("ArrowRight")  # from attention to the next map
    page.announces("Rollout: highest at")
    keyboard.press("ArrowLeft")
    page.page.locator("[data-state=layer]").focus()
    keyboard.press("ArrowLeft")
    page.announces("Layer 1, mean of 2 heads")


def test_a_click_on_a_patch_shows_what_it_attends_to(visit: Open, analysis: Analysis) -> None:
    page = visit().ready().look(photo())
    whole = page.map()
    page.click_patch(0.9, 0.95)
    row = analysis.layers[-1].attention[:, 24, 1:].mean(axis=0)
    page.announces(f"the patch in row 4, column 6 attends most to {cell(int(row.argmax()))} ({percent(row.max())})")
    assert page.map() != whole
    page.page.locator("[data-state=head]").fill("2")
    row = analysis.layers[-1].attention[1, 24, 1:]
    page.announces(f"Layer 2, head 2: the patch in row 4, column 6 attends most to {cell(int(row.argmax()))}")
    page.page.get_by_role("button", name="Back to the whole photo").click()
    page.page.locator("[data-state=head]").fill("0")
    page.announces("Layer 2, mean of 2 heads: the prediction attends")
    assert page.map() == whole


def test_a_class_shows_the_evidence_for_it(visit: Open, truth: vitral.Prediction, analysis: Analysis) -> None:
    page = visit().ready().look(photo())
    page.page.locator("label", has_text="Relevance").click()
    highest = int(analysis.maps["relevance"].argmax())
    page.announces(f"Relevance: highest at {cell(highest)}")
    page.says("#about-map", f"Which patches speak for {truth.labels[0]}.")
    first = page.map()
    page.page.locator(".bars button").nth(3).click()
    page.says("#about-map", f"Which patches speak for {truth.labels[3]}.")
    assert page.map() != first
    expect(page.page.locator(".bars button").nth(3)).to_have_attribute("aria-pressed", "true")


def test_the_map_covers_the_part_that_the_model_is_given(visit: Open, guarded: Server) -> None:
    turned = BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by a quarter
    Image.open(BytesIO(photo(rows=40, columns=80))).save(turned, "jpeg", exif=exif)
    page = visit(guarded.url, FRAGMENT).ready().look(turned.getvalue())
    outer, inner = page.boxes("[data-part=photo], [data-part=canvas]")
    assert outer["width"] / outer["height"] == pytest.approx(40 / 80, rel=0.02)
    shares = [
        (inner["x"] - outer["x"]) / outer["width"], (inner["y"] - outer["y"]) / outer["height"],
        inner["width"] / outer["width"], inner["height"] / outer["height"],
    ]  # fmt: skip
    # The 40 x 80 photo becomes 96 x 192, of which the middle 48 x 32 are cropped.
    assert shares == pytest.approx([0.25, 80 / 192, 0.5, 32 / 192], abs=0.01)


def test_two_models_and_two_photos_stand_side_by_side(visit: Open, tmp_path: Path) -> None:
    page = visit().ready().look(photo())
    page.page.get_by_role("button", name="Compare").click()
    expect(page.page.locator("#visits li")).to_have_count(2)
    page.part("canvas", 1).wait_for()
    second = vitral.Predictor(loaded(small(depth=1)), engine="eager")(photo())
    expect(page.part("said", 1)).to_have_text(second.labels[0])
    expect(page.part("model", 1)).to_have_value("other")
    expect(page.part("telling", 1)).to_contain_text("Layer 1, mean")  # it has only one
    left, right = page.boxes("[data-part=photo]")
    assert left["y"] == right["y"]
    page.part("model", 1).select_option("vit")
    page.drop(photo(seed=5), "dog.jpg", panel=1)
    expect(page.part("meta", 1)).to_contain_text("dog.jpg")
    other = vitral.Predictor(loaded(small()), engine="eager")(photo(seed=5))
    expect(page.part("sure", 1)).to_have_text(percent(other.scores[0]))
    page.page.locator(".panel").nth(0).get_by_role("button", name="Close").click()
    expect(page.page.locator(".panel")).to_have_count(1)
    page.tells(".meta", "dog.jpg")


def test_photos_of_this_visit_come_back_until_they_are_cleared(visit: Open, truth: vitral.Prediction) -> None:
    page = visit().ready().look(photo())
    page.drop(photo(seed=3), "dog.jpg")
    expect(page.page.locator("#visits li")).to_have_count(2)
    sent = page.questions()
    page.page.locator("#visits button").nth(1).click()
    page.tells(".meta", "cat.jpg")
    page.says(".said", truth.labels[0])
    expect(page.part("canvas")).to_be_visible()
    assert page.questions() == sent
    page.page.get_by_role("button", name="Clear").click()
    expect(page.page.locator("#history")).to_be_hidden()
    stored = "[localStorage.length, sessionStorage.length, document.cookie]"
    assert page.page.evaluate(stored) == [0, 0, ""]


HOSTILE = 'it\'s $(touch pwned) `touch pwned` "x";&.jpg'


def test_what_is_copied_runs_and_gives_the_same_answer(visit: Open, tmp_path: Path, truth: vitral.Prediction) -> None:
    page = visit().ready().look(photo(), HOSTILE)
    (tmp_path / HOSTILE).write_bytes(photo())

    def run(*command: str) -> str:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    answer = json.loads(run("sh", "-c", page.copied("curl")))
    assert answer["predictions"][0]["labels"] == list(truth.labels)
    (tmp_path / "program.py").write_text(page.copied("python"))
    told = run(sys.executable, "program.py")
    assert told.splitlines()[0] == f"{percent(truth.scores[0])} {truth.labels[0]}"
    copied = json.loads(page.copied("json"))
    assert copied["predictions"][0]["scores"] == pytest.approx(truth.scores, abs=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([HOSTILE, "program.py"])
    names = [["a\x1b[201~.png", "photo.png"], ["-", "-"], ["../../etc/x.jpg", "x.jpg"], ["gpj\u202e.jpg", "photo.jpg"]]
    found = "async (names) => { const {fileName} = await import('/page/commands.js'); return names.map(fileName); }"
    assert page.page.evaluate(found, [name for name, _ in names]) == [safe for _, safe in names]


def test_the_picture_that_is_downloaded_shows_the_map(visit: Open) -> None:
    page = visit().ready().look(photo())
    with page.page.expect_download() as download:
        page.page.get_by_role("button", name="Download the picture").click()
    assert download.value.suggested_filename == "cat-attention.png"
    with Image.open(download.value.path()) as picture:
        assert picture.format == "PNG"
        assert picture.width == 11 * 48  # whole times the photo, so that its pixels stay square
        assert picture.height > 11 * 40 + 45  # the caption has two lines, instead of letters too narrow to read
    page.page.locator("label", has_text="Photo").first.click()
    with page.page.expect_download() as download:
        page.page.get_by_role("button", name="Download the picture").click()
    assert Path(download.value.path()).read_bytes() == photo()


def test_the_camera_is_looked_at_live_until_a_photo_is_taken(visit: Open, server: Server) -> None:
    page = visit().ready()
    page.page.locator(".drop").get_by_role("button", name="Use the camera").click()
    page.page.locator("[data-part=rate]", has_text="answers per second").wait_for()
    page.page.locator(".bars li").first.wait_for()
    expect(page.part("video")).to_be_visible()
    frames = page.page.locator("[data-part=image]").get_attribute("src")
    page.page.wait_for_function("(old) => document.querySelector('[data-part=image]').src !== old", arg=frames)
    page.click_patch(0.1, 0.1)  # takes the photo that it is about
    page.announces("the patch in row 1, column 1 attends")
    expect(page.page.locator("#visits li")).to_have_count(1)
    expect(page.part("video")).to_be_hidden()
    assert page.part("video").evaluate("video => video.srcObject === null")
    page.tells(".meta", "camera.jpg")
    page.page.get_by_role("button", name="Camera").click()
    page.page.locator("[data-part=rate]", has_text="answers per second").wait_for()
    page.page.get_by_role("button", name="Take this photo").click()
    expect(page.page.locator("#visits li")).to_have_count(2)
    page.page.get_by_role("button", name="Camera").click()
    page.page.get_by_role("button", name="Stop").click()
    expect(page.part("drop")).to_be_visible()


def test_without_a_camera_api_the_phone_takes_the_photo(visit: Open) -> None:
    page = visit().ready()
    page.page.evaluate("Object.defineProperty(navigator, 'mediaDevices', {value: undefined})")
    with page.page.expect_file_chooser() as chooser:
        page.page.locator(".drop").get_by_role("button", name="Use the camera").click()
    assert chooser.value.element.get_attribute("capture") == "environment"


def test_a_model_without_attention_or_classes_says_so(visit: Open) -> None:
    page = visit().ready()
    page.part("model").select_option("resnet")
    page.drop(photo())
    page.page.locator(".bars li").first.wait_for()
    page.tells("#about-map", "cannot show where it looks")
    expect(page.part("canvas")).to_be_hidden()
    page.part("model").select_option("headless")
    page.says(".said", "Features only")
    page.part("canvas").wait_for()
    expect(page.page.locator("[data-state=map][value=relevance]")).to_be_hidden()


def test_a_token_comes_from_the_fragment_or_is_asked_for(visit: Open, guarded: Server) -> None:
    page = visit(guarded.url, FRAGMENT)
    page.ready().look(photo())
    assert page.page.url == f"{guarded.url}/"
    command = page.copied("curl")
    page.says("#toast", "Copied as curl. It contains your token.")
    assert "Bearer se'\\''c+r&t%41" in command
    page.page.evaluate("sessionStorage.clear()")
    page.excused = REFUSED
    page.page.goto(f"{guarded.url}/")
    page.complains("This server asks for a token.")
    page.page.get_by_label("Token").fill("wrong")
    page.page.keyboard.press("Enter")
    page.complains("The token is wrong.")
    page.page.get_by_label("Token").fill(TOKEN)
    page.page.keyboard.press("Enter")
    page.ready().look(photo())
