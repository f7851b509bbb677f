// The page: one state, rendered again whenever it changes.

const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const one = (selector, from = document) => from.querySelector(selector);
const percent = (share) => (share >= 0.0005 || share === 0 ? `${(100 * share).toFixed(1)}%` : "<\u00a00.1%");
const wrapped = (place, count) => ((place % count) + count) % count;

const roots = all("div.image");
const analyses = roots.map((_, number) => new ImageAnalysis(parseJson(`data-${number}`)));
const NO_MAP = -1;  // the photo alone
const state = {image: 0, map: NO_MAP, opacity: 65, smooth: false, layer: 0, head: 0, token: 0, cell: 0};
const current = () => analyses[state.image];
const root = () => roots[state.image];

/** Start with the photo alone, the last layer, the class token and the highest patch of the first card. */
function start() {
  const {maps, layers, prefix, grid} = current();
  state.layer = Math.max(0, layers.length - 1);
  const values = maps.length ? maps[one("[data-map]", root()).dataset.map].values : [];
  const brightest = values.length ? values.indexOf(Math.max(...values)) : Math.floor((grid[0] * grid[1]) / 2);
  state.cell = current().cellAt(Math.floor(brightest / grid[1]), brightest % grid[1]);
  state.token = prefix.length ? 0 : state.cell;
}

/** Keep what was chosen on another image, as far as this one has it. */
function clampState() {
  const {maps, layers, prefix, count} = current();
  state.map = Math.min(state.map, maps.length - 1);
  state.layer = Math.min(state.layer, Math.max(0, layers.length - 1));
  state.head = layers.length ? Math.min(state.head, layers[state.layer].heads) : 0;
  state.cell = Math.min(state.cell, count - 1);
  state.token = Math.min(state.token, prefix.length + count - 1);
}

function change(changes, announced = "") {
  Object.assign(state, changes);
  clampState();
  show();
  if (announced) one("#live").textContent = descriptions[announced]();
}

const descriptions = {
  map: () => current().maps[state.map]?.description ?? "The photo, without a map.",
  attention() {
    const view = current(), {layer, heads} = view.layers[state.layer];
    const {cells, rest} = view.attentionOf(state.layer, state.head, state.token);
    const most = [...cells.keys()].sort((a, b) => cells[b] - cells[a]).slice(0, 3);
    const where = most.map((cell) => `${view.cellName(cell)} (${percent(cells[cell])})`).join("; ");
    const others = view.prefix.map((name, token) => `${percent(rest[token])} on ${view.tokenName(token)}`).join(", ");
    const head = state.head ? `head ${state.head}` : `mean of ${heads} heads`;
    return `Layer ${layer}, ${head}: ${view.tokenName(state.token)} attends most to ${where}${others ? `; ${others}` : ""}.`;
  },
  similarity() {
    const view = current(), values = view.similarityTo(state.cell);
    const order = [...values.keys()].filter((cell) => cell !== state.cell).sort((a, b) => values[b] - values[a]);
    const say = (cell) => `${view.cellName(cell)} (${values[cell].toFixed(2)})`;
    if (!order.length) return "There is only one patch.";
    return `The patch in ${view.cellName(state.cell)} is most similar to ${order.slice(0, 3).map(say).join("; ")}, ` +
      `and least similar to ${say(order[order.length - 1])}. Cosine similarity: 1 is the same direction, 0 is orthogonal.`;
  },
};

function show() {
  for (const part of all("[data-image]")) part.toggleAttribute("hidden", Number(part.dataset.image) !== state.image);
  for (const button of all("[data-show]")) press(button, Number(button.dataset.show) === state.image);
  for (const link of all("nav a[data-to]")) link.href = `#${link.dataset.to}-${state.image}`;
  document.documentElement.style.setProperty("--opacity", state.opacity / 100);
  document.documentElement.classList.toggle("smooth", state.smooth);
  for (const input of all("[data-state]", root())) {
    const value = state[input.dataset.state];
    if (input.type === "radio") input.checked = Number(input.value) === value;
    else if (input.type === "checkbox") input.checked = value;
    else input.value = value;
  }
  showMaps();
  if (!current().ready) return;
  if (current().layers.length) showAttention();
  if (current().similarities) showSimilarity();
}

const press = (button, on) => button.setAttribute("aria-pressed", String(on));
const write = (name, text) => { for (const part of all(`[data-text=${name}]`, root())) part.textContent = text; };

function showMaps() {
  const view = current(), {grid, maps} = view;
  if (!maps.length) return;
  const value = (map) => (row, column) => map.values[row * grid[1] + column];
  const canvas = one("[data-canvas=map]", root());
  canvas.hidden = state.map === NO_MAP;
  if (!canvas.hidden) paint(canvas, grid, value(maps[state.map]));
  canvas.setAttribute("aria-label", descriptions.map());
  write("map", descriptions.map());
  for (const thumb of all("[data-thumb]", root())) paint(thumb, grid, value(maps[thumb.dataset.thumb]));
  for (const button of all("[data-map]", root())) press(button, Number(button.dataset.map) === state.map);
}

/** Move the cursor of an image to a cell, or hide it. */
function frame(picture, cell) {
  const cursor = one(".cursor", picture);
  cursor.hidden = cell < 0;
  if (cell < 0) return;
  const names = ["top", "left", "height", "width"];
  current().edges(cell).forEach((share, side) => { cursor.style[names[side]] = `${100 * share}%`; });
}

function showAttention() {
  const view = current(), {layers, grid, prefix} = view, here = layers[state.layer];
  const {cells} = view.attentionOf(state.layer, state.head, state.token), most = highest(cells);
  const pane = one("[data-pane=attention]", root()), text = descriptions.attention();
  paint(one("canvas", pane), grid, (row, column) => cells[view.cellAt(row, column)] / most);
  pane.setAttribute("aria-label", `${text} Arrow keys choose another patch.`);
  frame(pane, state.token - prefix.length);
  write("attention", text);
  for (const button of all("[data-token]", root())) press(button, Number(button.dataset.token) === state.token);

  const head = state.head ? `${state.head} of ${here.heads}` : `mean of ${here.heads}`;
  dial("layer", `${here.layer} of ${layers[layers.length - 1].layer}`);
  dial("head", head);
  const each = here.distance.map((_, number) => view.attentionOf(state.layer, number + 1, state.token).cells);
  for (const button of all("button[data-head]", root())) {
    const number = Number(button.dataset.head) - 1;
    button.hidden = number >= here.heads;
    if (button.hidden) continue;
    paintPanes(one("canvas", button), [1, 1], view.cells, () => each[number]);
    one("span", button).textContent = `${here.distance[number]} px`;
    button.setAttribute("aria-label", `Head ${number + 1}, mean attention distance ${here.distance[number]} pixels`);
    press(button, state.head === number + 1);
  }
  showWindow();
  showCharts(here.layer);
}

function dial(name, text) {
  one(`[data-out=${name}]`, root()).textContent = text;
  one(`[data-state=${name}]`, root()).setAttribute("aria-valuetext", text);
}

/** Draw every head of every layer: layers from left to right, heads from top to bottom. */
function showWindow() {
  const view = current(), lattice = one(".lattice", root()), canvas = one("canvas", lattice);
  const right = view.layers.length, down = mostHeads();
  const values = (head, layer) => (head < view.layers[layer].heads ? view.attentionOf(layer, head + 1, state.token).cells : null);
  paintPanes(canvas, [down, right], view.cells, values);
  canvas.setAttribute("aria-label", `Attention of ${view.tokenName(state.token)} in ${right} layers of ${down} heads`);
  const cursor = one(".cursor", lattice), edge = [1 / canvas.width, 1 / canvas.height];
  const wide = (1 - edge[0]) / right, high = (1 - edge[1]) / down;
  cursor.style.left = `${100 * state.layer * wide}%`;
  cursor.style.width = `${100 * (wide + edge[0])}%`;
  cursor.style.top = state.head ? `${100 * (state.head - 1) * high}%` : "0";
  cursor.style.height = state.head ? `${100 * (high + edge[1])}%` : "100%";
}

const mostHeads = () => Math.max(...current().layers.map((layer) => layer.heads));

/** Highlight the chosen layer in the charts, and the chosen head in the chart of attention distance. */
function showCharts(layer) {
  for (const part of all(".layer-column")) part.classList.toggle("here", Number(part.dataset.layer) === layer);
  for (const dot of all(".dot")) {
    const head = !state.head || Number(dot.dataset.head) === state.head;
    dot.classList.toggle("here", head && Number(dot.dataset.layer) === layer);
  }
}

function showSimilarity() {
  const view = current(), values = view.similarityTo(state.cell), pane = one("[data-pane=similarity]", root());
  paint(one("canvas", pane), view.grid, (row, column) => values[view.cellAt(row, column)]);
  const text = descriptions.similarity();
  pane.setAttribute("aria-label", `${text} Arrow keys choose another patch.`);
  frame(pane, state.cell);
  write("similarity", text);
}

const choose = (cell, announced) => change({cell, token: current().prefix.length + cell}, announced);

function listenToPane(pane) {
  const announced = pane.dataset.pane;
  const pick = (event) => {
    const box = pane.getBoundingClientRect(), [rows, columns] = current().grid;
    const within = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    const row = within((event.clientY - box.top) / box.height, rows);
    choose(current().cellAt(row, within((event.clientX - box.left) / box.width, columns)), announced);
  };
  pane.addEventListener("click", pick);
  pane.addEventListener("pointermove", (event) => { if (event.buttons & 1 && event.pointerType === "mouse") pick(event); });
  pane.addEventListener("keydown", (event) => {
    const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const [rows, columns] = current().cells;
    const row = Math.max(0, Math.min(rows - 1, Math.floor(state.cell / columns) + step[0]));
    const column = Math.max(0, Math.min(columns - 1, (state.cell % columns) + step[1]));
    choose(row * columns + column, announced);
  });
}

function stepLayer(by) {
  if (current().layers.length) change({layer: Math.max(0, Math.min(current().layers.length - 1, state.layer + by))}, "attention");
}

function stepHead(by) {
  const here = current().layers[state.layer];
  if (here) change({head: wrapped(state.head + by, here.heads + 1)}, "attention");
}

function nextToken() {
  const {layers, prefix} = current();
  if (layers.length && prefix.length) change({token: state.token < prefix.length ? (state.token + 1) % prefix.length : 0}, "attention");
}

function nextMap() {
  const order = all("[data-state=map]", root()).map((input) => Number(input.value));
  if (order.length) change({map: order[(order.indexOf(state.map) + 1) % order.length]}, "map");
}

function walk(by) {
  const steps = all(`[data-image="${state.image}"] .step`);
  if (!steps.length) return;
  const at = steps.indexOf(document.activeElement);
  const next = steps[Math.max(0, Math.min(steps.length - 1, at < 0 ? 0 : at + by))];
  next.focus({preventScroll: true});
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  next.scrollIntoView({behavior: still ? "auto" : "smooth", block: "start"});
}

const actions = {
  "[": () => stepLayer(-1), "]": () => stepLayer(1), h: () => stepHead(1), H: () => stepHead(-1), m: nextMap, c: nextToken,
  n: () => walk(1), p: () => walk(-1), "?": () => one("#help").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || one("#help").open || !one("#letters").checked) return;
  if (!Object.hasOwn(actions, event.key)) return;
  event.preventDefault();
  actions[event.key]();
});

const announcements = {map: "map", layer: "attention", head: "attention"};
for (const input of all("[data-state]")) {
  input.addEventListener("input", () => {
    const name = input.dataset.state, value = input.type === "checkbox" ? input.checked : Number(input.value);
    change({[name]: value}, announcements[name] ?? "");
  });
}
for (const pane of all(".pane")) listenToPane(pane);
for (const button of all("[data-map]")) button.addEventListener("click", () => change({map: Number(button.dataset.map)}, "map"));
for (const button of all("button[data-head]")) {
  button.addEventListener("click", () => {
    const head = Number(button.dataset.head);
    change({head: state.head === head ? 0 : head}, "attention");
  });
}
for (const button of all("[data-token]")) {
  button.addEventListener("click", () => change({token: Number(button.dataset.token)}, "attention"));
}
for (const lattice of all(".lattice")) {
  lattice.addEventListener("click", (event) => {
    const box = lattice.getBoundingClientRect(), right = current().layers.length, down = mostHeads();
    const layer = Math.min(right - 1, Math.floor(((event.clientX - box.left) / box.width) * right));
    change({layer, head: Math.min(down, Math.floor(((event.clientY - box.top) / box.height) * down) + 1)}, "attention");
  });
}
for (const part of all(".layer-column, .dot")) {
  part.addEventListener("click", () => {
    const layer = current().layers.findIndex((each) => each.layer === Number(part.dataset.layer));
    if (layer >= 0) change(part.dataset.head ? {layer, head: Number(part.dataset.head)} : {layer}, "attention");
  });
}
for (const button of all("[data-show]")) button.addEventListener("click", () => showImage(Number(button.dataset.show)));

async function showImage(image) {
  change({image});
  await current().unpack();
  change({});
  document.documentElement.dataset.ready = image;
}

const dark = () => {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
one("#theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  press(one("#theme"), dark());
});
press(one("#theme"), dark());
one("#keys").addEventListener("click", () => one("#help").showModal());

start();
showImage(0);
