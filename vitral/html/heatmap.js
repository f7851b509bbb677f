// Maps over patches as pictures: the color scale, and painting on a canvas. The colors are in the page's element `colors`.

export const parseJson = (id) => JSON.parse(document.getElementById(id).textContent);

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
export function paint(canvas, [rows, columns], value) {
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
export function paintPanes(canvas, [down, right], [rows, columns], pane) {
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

/** The largest value, never zero: what a map is divided by. */
export function highest(values) {
  let most = 1e-12;
  for (const value of values) if (value > most) most = value;
  return most;
}
