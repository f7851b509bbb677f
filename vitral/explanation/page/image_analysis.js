// The data of an image, unpacked.

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
