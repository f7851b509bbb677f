// The numbers of an image, unpacked, and how they become colors.

const parsed = (id) => JSON.parse(document.getElementById(id).textContent);

/** Red, green and blue of -255 to 255, the nearer to nothing the darker. */
const LADDER = (() => {
  const {warm, cold} = parsed("colors");
  const ladder = new Uint8ClampedArray(511 * 3);
  for (let step = -255; step <= 255; step++) {
    const stops = step < 0 ? cold : warm;
    const along = (Math.abs(step) / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(along), stops.length - 2);
    for (let channel = 0; channel < 3; channel++) {
      const from = stops[low][channel], to = stops[low + 1][channel];
      ladder[(step + 255) * 3 + channel] = from + (to - from) * (along - low);
    }
  }
  return ladder;
})();

/** Set one pixel of a picture to the color of a value from -1 to 1. */
function dab(picture, pixel, value) {
  const step = (Math.round(Math.max(-1, Math.min(1, value)) * 255) + 255) * 3;
  picture.data[pixel * 4] = LADDER[step];
  picture.data[pixel * 4 + 1] = LADDER[step + 1];
  picture.data[pixel * 4 + 2] = LADDER[step + 2];
  picture.data[pixel * 4 + 3] = 255;
}

/** A picture of rows x columns pixels on a canvas; value(row, column) is from -1 to 1. */
function paint(canvas, [rows, columns], value) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(columns, rows);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) dab(picture, row * columns + column, value(row, column));
  }
  context.putImageData(picture, 0, 0);
}

/** Panes of rows x columns cells, a pixel of lead between them; pane(down, right) gives its values or nothing. */
function paintPanes(canvas, [down, right], [rows, columns], pane) {
  const times = Math.max(1, Math.round(14 / columns));  // few cells are drawn large, so that the lead stays thin
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
        for (let x = 0; x < wide - 1; x++) dab(picture, line + x, values[row + Math.floor(x / times)] / most);
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

async function inflated(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) bytes[place] = letters.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** One image: its maps, what its tokens looked at, how alike its patches are. */
class Sight {
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
      this.levels = new Uint8Array(await inflated(this.attention));
      this.kept = new Uint16Array(await inflated(this.rows));
    }
    if (this.similarity) this.alikeness = new Uint8Array(await inflated(this.similarity));
    this.attention = this.rows = this.similarity = "";
    this.ready = true;
  }

  /** What a token looks at in one head, or in the mean of all where head is 0: weights of cells, and of the rest. */
  look(layer, head, token) {
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

  /** How alike the cells are to one of them. */
  alike(cell) {
    return Float32Array.from(this.alikeness.subarray(cell * this.count, (cell + 1) * this.count), (byte) => byte / 127.5 - 1);
  }

  /** The cell that a patch belongs to. */
  cellAt(row, column) {
    const [rows, columns] = this.cells, [whole, wide] = this.grid;
    return Math.floor((row * rows) / whole) * columns + Math.floor((column * columns) / wide);
  }

  /** Where a cell begins and ends, in shares of the picture: top, left, height, width. */
  edges(cell) {
    const [rows, columns] = this.cells, [whole, wide] = this.grid;
    const row = Math.floor(cell / columns), column = cell % columns;
    const top = Math.ceil((row * whole) / rows), bottom = Math.ceil(((row + 1) * whole) / rows);
    const left = Math.ceil((column * wide) / columns), right = Math.ceil(((column + 1) * wide) / columns);
    return [top / whole, left / wide, (bottom - top) / whole, (right - left) / wide];
  }

  place(cell) {
    return `row ${Math.floor(cell / this.cells[1]) + 1}, column ${(cell % this.cells[1]) + 1}`;
  }

  named(token) {
    const prefix = this.prefix.length;
    if (token < prefix) return this.prefix[token].startsWith("class") ? "the class token" : this.prefix[token];
    return `the patch in ${this.place(token - prefix)}`;
  }
}
