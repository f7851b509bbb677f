// Photos: from a file, the clipboard, a drag or the camera; shown where the browser can, checked before they are sent.

import {Problem} from "./api.js";
import {text} from "./language.js";

const THUMB = 160;  // pixels

/** One photo: its bytes as they are, and how the browser shows it. `width` is 0 where it cannot. */
export class Photo {
  constructor(blob, name, picture) {
    Object.assign(this, {blob, name, width: picture?.width ?? 0, height: picture?.height ?? 0});
    this.url = picture ? URL.createObjectURL(blob) : "";
  }

  get isTiny() { return this.width > 0 && Math.max(this.width, this.height) <= 128; }

  release() { if (this.url) URL.revokeObjectURL(this.url); }
}

/** A photo of a file; raises a Problem for what is no image, empty or too large to be sent. */
export async function openPhoto(blob, name, mostBytes) {
  if (!blob.size) throw new Problem("empty", {values: [name]});
  if (mostBytes && blob.size > mostBytes) throw new Problem("too_large", {values: [name, blob.size]});
  const picture = await createImageBitmap(blob).catch(() => null);
  // The model may read formats that this browser cannot show, such as TIFF: the server decides about those.
  if (!picture && !blob.type.startsWith("image/")) throw new Problem("not_image", {values: [name]});
  const photo = new Photo(blob, name, picture);
  photo.thumb = picture ? drawThumb(picture) : "";
  picture?.close();
  return photo;
}

/** A small square of the photo as a data URI. */
export function drawThumb(picture) {
  const canvas = document.createElement("canvas"), side = Math.min(picture.width, picture.height);
  canvas.width = canvas.height = Math.min(THUMB, side);
  canvas.getContext("2d").drawImage(picture, (picture.width - side) / 2, (picture.height - side) / 2, side, side, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.85);
}

const EXTENSIONS = {"image/jpeg": "jpg", "image/png": "png", "image/webp": "webp", "image/gif": "gif"};

/** The file of a drop or paste, with a name; raises a Problem where there is none. */
export function fileOf(transfer) {
  const files = [...(transfer?.files ?? [])];
  const file = files.find((each) => each.type.startsWith("image/")) ?? files[0];
  if (!file) throw new Problem("no_file");
  return file;
}

/** A name for a photo that has none; browsers call what is pasted image.png. */
export const nameFor = (kind, type) => `${text(`${kind}_photo`)}.${EXTENSIONS[type] ?? "png"}`;

/** Let photos be dropped anywhere and pasted; `receive(transfer, target)` gets them. */
export function listenForPhotos(receive) {
  let depth = 0;
  const dragging = (on) => document.documentElement.classList.toggle("dragging", on);
  const isFile = (event) => [...(event.dataTransfer?.types ?? [])].some((type) => type === "Files" || type === "text/uri-list");
  document.addEventListener("dragenter", (event) => { if (isFile(event)) { depth += 1; dragging(true); } });
  document.addEventListener("dragleave", (event) => { if (isFile(event)) { depth = Math.max(0, depth - 1); dragging(depth > 0); } });
  document.addEventListener("dragover", (event) => { if (isFile(event)) event.preventDefault(); });
  document.addEventListener("drop", (event) => {
    depth = 0;
    dragging(false);
    if (!isFile(event)) return;
    event.preventDefault();
    receive(event.dataTransfer, event.target);
  });
  document.addEventListener("paste", (event) => {
    if (event.target.closest?.("input, textarea")) return;  // the token, for example
    if (!event.clipboardData?.files.length) return;
    event.preventDefault();
    receive(event.clipboardData, null);
  });
}
