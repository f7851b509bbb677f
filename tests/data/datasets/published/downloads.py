"""Downloads of published sets in their true layout, of a few images each; SciPy writes the files of MATLAB."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

# By the number of the development kit, which is not the sorted order; the last is no leaf of the tree.
SYNSETS = {1: "n02119789", 2: "n01440764", 3: "n03255030", 4: "n00001740"}
TRUTH = (3, 1, 2, 2)  # of the validation images
TRAIN = {"n02119789": 2, "n01440764": 1, "n03255030": 2}
DEVKIT = "ILSVRC2012_devkit_t12"


def picture(shade: int = 120, side: int = 16, format: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), shade, np.uint8)).save(file, format)
    return file.getvalue()


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def matlab(compressed: bool = True, **variables: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, variables, do_compression=compressed)
    return file.getvalue()


def meta_mat() -> bytes:
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O"), ("children", "O")]
    rows = np.zeros((len(SYNSETS), 1), dtype=[*kinds, ("num_train_images", "O")])
    for place, (number, wnid) in enumerate(SYNSETS.items()):
        children = np.array([1.0, 2.0]) if number == len(SYNSETS) else np.zeros((0, 0))
        count = 0.0 if number == len(SYNSETS) else float(TRAIN[wnid])
        rows[place, 0] = (float(number), wnid, "kit fox, Vulpes macrotis", float(len(children)), children, count)
    return matlab(synsets=rows)


def devkit() -> dict[str, bytes]:
    truth = "".join(f"{number}\n" for number in TRUTH).encode()
    return {f"{DEVKIT}/data/meta.mat": meta_mat(), f"{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt": truth}


def val_names() -> list[str]:
    return [f"ILSVRC2012_val_{number:08}.JPEG" for number in range(1, len(TRUTH) + 1)]


def tar_of(files: dict[str, bytes], mode: Any = "w") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def train_images() -> dict[str, dict[str, bytes]]:
    return {
        wnid: {f"{wnid}_{number}.JPEG": picture(40 * place + number) for number in range(count)}
        for place, (wnid, count) in enumerate(TRAIN.items(), start=1)
    }


def write_imagenet(root: Path, form: str = "folders") -> Path:
    """As `folders` of classes with a flat val and the kit unpacked, or as published: three `tars`."""
    val = {name: picture(10 * number) for number, name in enumerate(val_names(), start=1)}
    if form == "tars":
        inner = {f"{wnid}.tar": tar_of(files) for wnid, files in train_images().items()}
        tars = {"ILSVRC2012_img_train.tar": tar_of(inner), "ILSVRC2012_img_val.tar": tar_of(val)}
        return write(root, tars | {f"{DEVKIT}.tar.gz": tar_of(devkit(), "w:gz")})
    train = {f"train/{wnid}/{name}": data for wnid, files in train_images().items() for name, data in files.items()}
    return write(root, train | {f"val/{name}": data for name, data in val.items()} | devkit())


def write_pets(root: Path) -> Path:
    lists = {
        "annotations/trainval.txt": b"#Image CLASS-ID SPECIES BREED ID\nAbyssinian_1 1 1 1\namerican_bulldog_7 2 2 1\n",
        "annotations/test.txt": b"american_bulldog_9 2 2 1\n",
    }
    names = ("Abyssinian_1", "american_bulldog_7", "american_bulldog_9")
    return write(root, lists | {f"images/{name}.jpg": picture() for name in names})


def write_flowers(root: Path) -> Path:
    labels = matlab(labels=np.array([[2, 1, 2, 1, 2]], np.uint8))
    sets = matlab(compressed=False, trnid=np.array([[1, 4]]), valid=np.array([[2]]), tstid=np.array([[5, 3]]))
    files = {"imagelabels.mat": labels, "setid.mat": sets}
    return write(root, files | {f"jpg/image_{number:05}.jpg": picture() for number in range(1, 6)})


def framed(shade: int, side: int = 20) -> bytes:
    """A PNG with the red border of ObjectNet."""
    pixels = np.full((side, side, 3), shade, np.uint8)
    pixels[:] = (255, 0, 0)
    pixels[2:-2, 2:-2] = shade
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_objectnet(root: Path) -> Path:
    mappings = {
        "folder_to_objectnet_label.json": {"alarm_clock": "Alarm clock", "chair": "Chair", "weight": "Weight"},
        "objectnet_to_imagenet_1k.json": {"Alarm clock": "digital clock; analog clock", "Chair": "rocking chair"},
        "pytorch_to_imagenet_2012_id.json": {"0": 2, "1": 0, "2": 1},
    }
    files = {f"mappings/{name}": json.dumps(each).encode() for name, each in mappings.items()}
    files["mappings/imagenet_to_label_2012_v2"] = b"digital clock\nrocking chair\nanalog clock\n"
    pictures = {"alarm_clock/a.png": framed(50), "chair/b.png": framed(90), "weight/c.png": framed(130)}
    return write(root, files | {f"images/{name}": data for name, data in pictures.items()})
