// The data of an image, unpacked, and the color scale.

const parseJson = (id) => JSON.parse(document.getElementById(id).textContent);

/** Red, green and blue of the values -255 to 255; 0 is dark. */
const COLORMAP = (() => {
  const {positive, negative} = parseJson("colors");
  const colors = new Uint8ClampedArray(511 * 3);
  for (let step = -255; step <= 255; step++) {
    const stops = step < 0 ? negative : positive;
    const along = (Math.abs(step) / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(along), stops.length - 2);
    for (let channel = 0; channel < 3; channel++) {
      const from = stops[low][channel], to = stops[low + 1][channel];
      colors[(step + 255) * 3 + channel] = from + (to - from) * (along - low);
    }
  }
  return colors;
})();

/** Set one pixel of a picture to the color of a value from -1 to 1. */
function setPixel(picture, pixel, value) {
  const step = (Math.round(Math.max(-1, Math.min(1, value)) * 255) + 255) * 3;
  picture.data[pixel * 4] = COLORMAP[step];
  picture.data[pixel * 4 + 1] = COLORMAP[step + 1];
  picture.data[pixel * 4 + 2] = COLORMAP[step + 2];
  picture.data[pixel * 4 + 3] = 255;
}

/** A picture of rows x columns pixels on a canvas; value(row, column) is from -1 to 1. */
function paint(canvas, [rows, columns], value) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(columns, rows);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) setPixel(picture, row * columns + column, value(row, column));
  }
  context.putImageData(picture, 0, 0);
}

/** Panes of rows x columns cells, a pixel between them; pane(down, right) returns its values, or null for an empty pane. */
function paintPanes(canvas, [down, right], [rows, columns], pane) {
  const times = Math.max(1, Math.round(14 / columns));  // few cells are drawn large, so that the gaps stay thin
  const high = rows * times + 1, wide = columns * times + 1;
  canvas.width = right * wide + 1;
  canvas.height = down * high + 1;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(canvas.width, canvas.height);
  for (let i = 0; i < down; i++) {
    for (let j = 0; j < right; j++) {
      const values = pane(i, j);
      if (!values) continue;
      const most = highest(values);
      for (let y = 0; y < high - 1; y++) {
        const row = Math.floor(y / times) * columns, line = (i * high + 1 + y) * canvas.width + j * wide + 1;
        for (let x = 0; x < wide - 1; x++) setPixel(picture, line + x, values[row + Math.floor(x / times)] / most);
      }
    }
  }
  context.putImageData(picture, 0, 0);
}

function highest(values) {
  let most = 1e-12;
  for (const value of values) if (value > most) most = value;
  return most;
}

async function inflate(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) bytes[place] = letters.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** One image: its maps, the attention of its tokens, the similarity of its patches. */
class ImageAnalysis {
  constructor(data) {
    Object.assign(this, data);
    this.count = data.cells[0] * data.cells[1];
    this.tokens = data.prefix.length + this.count;
    this.first = [];  // head of each layer, among the heads of all layers
    let heads = 0;
    for (const layer of data.layers) {
      this.first.push(heads);
      heads += layer.heads;
    }
  }

  async unpack() {
    if (this.ready) return;
    if (this.attention) {
      this.levels = new Uint8Array(await inflate(this.attention));
      this.kept = new Uint16Array(await inflate(this.rows));
    }
    if (this.similarity) this.similarities = new Uint8Array(await inflate(this.similarity));
    this.attention = this.rows = this.similarity = "";
    this.ready = true;
  }

  /** Attention of a token in one head, or the mean of all heads where head is 0: weights of cells, and of the prefix. */
  attentionOf(layer, head, token) {
    const heads = head ? [head - 1] : Array.from({length: this.layers[layer].heads}, (_, each) => each);
    const cells = new Float32Array(this.count), rest = new Float32Array(this.prefix.length);
    for (const each of heads) {
      const row = (this.first[layer] + each) * this.tokens + token;
      const kept = row * (1 + rest.length), scale = this.kept[kept] / 65535 / this.steps ** 2 / heads.length;
      for (let cell = 0; cell < this.count; cell++) {
        const level = this.levels[row * this.count + cell];
        cells[cell] += level * level * scale;
      }
      for (let other = 0; other < rest.length; other++) {
        rest[other] += this.kept[kept + 1 + other] / 65535 / heads.length;
      }
    }
    return {cells, rest};
  }

  /** Cosine similarity of the cells to one of them. */
  similarityTo(cell) {
    return Float32Array.from(this.similarities.subarray(cell * this.count, (cell + 1) * this.count), (byte) => byte / 127.5 - 1);
  }

  /** The cell of a patch. */
  cellAt(row, column) {
    const [rows, columns] = this.cells, [whole, wide] = this.grid;
    return Math.floor((row * rows) / whole) * columns + Math.floor((column * columns) / wide);
  }

  /** Top, left, height and width of a cell, as fractions of the image. */
  edges(cell) {
    const [rows, columns] = this.cells, [whole, wide] = this.grid;
    const row = Math.floor(cell / columns), column = cell % columns;
    const top = Math.ceil((row * whole) / rows), bottom = Math.ceil(((row + 1) * whole) / rows);
    const left = Math.ceil((column * wide) / columns), right = Math.ceil(((column + 1) * wide) / columns);
    return [top / whole, left / wide, (bottom - top) / whole, (right - left) / wide];
  }

  cellName(cell) {
    return `row ${Math.floor(cell / this.cells[1]) + 1}, column ${(cell % this.cells[1]) + 1}`;
  }

  tokenName(token) {
    const prefix = this.prefix.length;
    if (token < prefix) return this.prefix[token].startsWith("class") ? "the class token" : this.prefix[token];
    return `the patch in ${this.cellName(token - prefix)}`;
  }
}
