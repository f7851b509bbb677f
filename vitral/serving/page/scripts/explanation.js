// The numbers of an explanation: maps over the patches, the attention of every head, and where they are highest.

const LARGE = 36;  // patches: so few are large

/** Bytes or numbers of an array that the server sent, as numbers. */
function unpack({data, max = 1}) {
  if (Array.isArray(data)) return Float32Array.from(data.flat(Infinity));
  return Float32Array.from(atob(data), (letter) => (letter.charCodeAt(0) / 255) * max);
}

/** The attention of one token to the N patches, in each of L layers and H heads. */
export class Attention {
  constructor(packed) {
    [this.layers, this.heads, this.count] = packed.shape;
    this.weights = unpack(packed);
  }

  /** Weights of the patches in a layer and a head, both counted from 1; head 0 is the mean of all heads. */
  of(layer, head) {
    const heads = head ? [head - 1] : Array.from({length: this.heads}, (_, each) => each);
    const found = new Float32Array(this.count);
    for (const each of heads) {
      const first = ((layer - 1) * this.heads + each) * this.count;
      for (let patch = 0; patch < this.count; patch++) found[patch] += this.weights[first + patch] / heads.length;
    }
    return found;
  }
}

/** The maps of one photo, from the token that the prediction is read from. */
export class Explanation {
  constructor({grid, box, attention, rollout, relevance, label}) {
    Object.assign(this, {grid, box, label: label ?? ""});
    this.attention = attention ? new Attention(attention) : null;
    this.maps = {rollout: rollout && Float32Array.from(rollout), relevance: relevance && Float32Array.from(relevance)};
  }

  /** How much of the photo a map covers until the reader decides: large patches would hide most of it. */
  get opacity() { return this.grid[0] * this.grid[1] > LARGE ? 65 : 40; }

  has(map) { return map === "photo" || (map === "attention" ? this.attention !== null : Boolean(this.maps[map])); }
}

/** The patches with the highest values, highest first. */
export const highestPatches = (values, count) => [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, count);
