// The picture to download: the photo with its map, and lines that say what it shows.

import {highest, paint} from "./heatmap.js";

const MOST = 2048;  // pixels on the longer side
const LEAST = 512;  // so that small photos can be looked at

/** A PNG of the photo, the map of the view over it, and the caption below. */
export async function drawPicture({image, explanation, values, opacity, isSmooth, caption}) {
  const [wide, high] = [image.naturalWidth, image.naturalHeight], side = Math.max(wide, high);
  const scale = side > MOST ? MOST / side : Math.max(1, Math.round(LEAST / side));
  const width = Math.round(wide * scale), height = Math.round(high * scale);
  const size = Math.max(14, Math.round(width / 48)), font = `${size}px system-ui, sans-serif`, edge = Math.round(size * 0.8);
  const lines = wrap(caption, font, width - 2 * edge), step = Math.round(size * 1.4), below = lines.length * step + edge;
  const canvas = Object.assign(document.createElement("canvas"), {width, height: height + below});
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale <= 1;
  context.drawImage(image, 0, 0, width, height);
  if (values) {
    const [left, top, right, bottom] = explanation.box, box = [left * width, top * height, (right - left) * width, (bottom - top) * height];
    shadeOutside(context, width, height, box);
    const map = document.createElement("canvas"), most = highest(values), columns = explanation.grid[1];
    paint(map, explanation.grid, (row, column) => values[row * columns + column] / most);
    context.globalAlpha = opacity;
    context.globalCompositeOperation = "hard-light";
    context.imageSmoothingEnabled = isSmooth;
    context.drawImage(map, ...box);
    context.globalAlpha = 1;
    context.globalCompositeOperation = "source-over";
  }
  context.fillStyle = "#1d2126";
  context.fillRect(0, height, width, below);
  Object.assign(context, {fillStyle: "#fbfaf7", font, textBaseline: "middle"});
  lines.forEach((line, number) => context.fillText(line, edge, height + edge / 2 + (number + 0.5) * step, width - 2 * edge));
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
}

/** A text in lines of at most this width; Chinese is broken between any two signs. */
function wrap(text, font, width) {
  const context = Object.assign(document.createElement("canvas").getContext("2d"), {font}), lines = [""];
  for (const piece of text.match(/[\u2e80-\uffff] *|[^ \u2e80-\uffff]+ */g) ?? []) {
    const longer = lines.at(-1) + piece;
    if (lines.at(-1) && context.measureText(longer.trimEnd()).width > width) lines.push(piece);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}

/** Darken what the model was not given. */
function shadeOutside(context, width, height, [left, top, wide, high]) {
  context.fillStyle = "rgb(0 0 0 / .5)";
  context.beginPath();
  context.rect(0, 0, width, height);
  context.rect(left, top, wide, high);
  context.fill("evenodd");
}

/** Let the browser save a blob under a name. */
export function save(blob, name) {
  const link = Object.assign(document.createElement("a"), {href: URL.createObjectURL(blob), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
