// The page: one state, shown anew whenever it changes.

const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const one = (selector, from = document) => from.querySelector(selector);
const percent = (share) => (share >= 0.0005 || share === 0 ? `${(100 * share).toFixed(1)}\u00a0%` : "<\u00a00.1\u00a0%");
const wrapped = (place, count) => ((place % count) + count) % count;

const roots = all("div.image");
const sights = roots.map((_, number) => new Sight(parsed(`data-${number}`)));
const state = {image: 0, map: 0, opacity: 65, smooth: false, layer: 0, head: 0, token: 0, cell: 0};
const sight = () => sights[state.image];
const root = () => roots[state.image];

/** Begin where there is most to see: the first card's map, the last layer, the class token, the patch that counts most. */
function begin() {
  const {maps, layers, prefix, grid} = sight();
  const chosen = one("[data-state=map]:checked", root());
  state.map = chosen ? Number(chosen.value) : 0;
  state.layer = Math.max(0, layers.length - 1);
  const values = maps.length ? maps[state.map].values : [];
  const brightest = values.length ? values.indexOf(Math.max(...values)) : Math.floor((grid[0] * grid[1]) / 2);
  state.cell = sight().cellAt(Math.floor(brightest / grid[1]), brightest % grid[1]);
  state.token = prefix.length ? 0 : state.cell;
}

/** Keep what was chosen on another image, as far as this one has it. */
function settle() {
  const {maps, layers, prefix, count} = sight();
  state.map = Math.min(state.map, Math.max(0, maps.length - 1));
  state.layer = Math.min(state.layer, Math.max(0, layers.length - 1));
  state.head = layers.length ? Math.min(state.head, layers[state.layer].heads) : 0;
  state.cell = Math.min(state.cell, count - 1);
  state.token = Math.min(state.token, prefix.length + count - 1);
}

function change(changes, said = "") {
  Object.assign(state, changes);
  settle();
  show();
  if (said) one("#live").textContent = told[said]();
}

const told = {
  map: () => sight().maps[state.map].told,
  attention() {
    const view = sight(), {layer, heads} = view.layers[state.layer];
    const {cells, rest} = view.look(state.layer, state.head, state.token);
    const most = [...cells.keys()].sort((a, b) => cells[b] - cells[a]).slice(0, 3);
    const where = most.map((cell) => `${view.place(cell)} (${percent(cells[cell])})`).join("; ");
    const others = view.prefix.map((name, token) => `${percent(rest[token])} at ${view.named(token)}`).join(", ");
    const head = state.head ? `head ${state.head}` : `mean of ${heads} heads`;
    return `Layer ${layer}, ${head}: ${view.named(state.token)} looks most at ${where}${others ? `; ${others}` : ""}.`;
  },
  similarity() {
    const view = sight(), values = view.alike(state.cell);
    const order = [...values.keys()].filter((cell) => cell !== state.cell).sort((a, b) => values[b] - values[a]);
    const say = (cell) => `${view.place(cell)} (${values[cell].toFixed(2)})`;
    if (!order.length) return "There is one patch alone.";
    return `The patch in ${view.place(state.cell)} is most like ${order.slice(0, 3).map(say).join("; ")}, ` +
      `and least like ${say(order[order.length - 1])}. 1 is the same direction, 0 none in common.`;
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
  if (!sight().ready) return;
  if (sight().layers.length) showAttention();
  if (sight().alikeness) showSimilarity();
}

const press = (button, on) => button.setAttribute("aria-pressed", String(on));
const write = (name, text) => { for (const part of all(`[data-text=${name}]`, root())) part.textContent = text; };

function showMaps() {
  const view = sight(), {grid, maps} = view;
  if (!maps.length) return;
  const value = (map) => (row, column) => map.values[row * grid[1] + column];
  const canvas = one("[data-canvas=map]", root());
  paint(canvas, grid, value(maps[state.map]));
  canvas.setAttribute("aria-label", maps[state.map].told);
  write("map", maps[state.map].told);
  for (const thumb of all("[data-thumb]", root())) paint(thumb, grid, value(maps[thumb.dataset.thumb]));
  for (const button of all("[data-map]", root())) press(button, Number(button.dataset.map) === state.map);
}

/** Put the cursor of a picture around a cell, or nowhere. */
function frame(picture, cell) {
  const cursor = one(".cursor", picture);
  cursor.hidden = cell < 0;
  if (cell < 0) return;
  const names = ["top", "left", "height", "width"];
  sight().edges(cell).forEach((share, side) => { cursor.style[names[side]] = `${100 * share}%`; });
}

function showAttention() {
  const view = sight(), {layers, grid, prefix} = view, here = layers[state.layer];
  const {cells} = view.look(state.layer, state.head, state.token), most = highest(cells);
  const pane = one("[data-pane=attention]", root()), text = told.attention();
  paint(one("canvas", pane), grid, (row, column) => cells[view.cellAt(row, column)] / most);
  pane.setAttribute("aria-label", `${text} Arrow keys choose another patch.`);
  frame(pane, state.token - prefix.length);
  write("attention", text);
  for (const button of all("[data-token]", root())) press(button, Number(button.dataset.token) === state.token);

  const head = state.head ? `${state.head} of ${here.heads}` : `mean of ${here.heads}`;
  dial("layer", `${here.layer} of ${layers[layers.length - 1].layer}`);
  dial("head", head);
  const each = here.distance.map((_, number) => view.look(state.layer, number + 1, state.token).cells);
  for (const button of all("button[data-head]", root())) {
    const number = Number(button.dataset.head) - 1;
    button.hidden = number >= here.heads;
    if (button.hidden) continue;
    paintPanes(one("canvas", button), [1, 1], view.cells, () => each[number]);
    one("span", button).textContent = `${here.distance[number]} px`;
    button.setAttribute("aria-label", `Head ${number + 1}, looks ${here.distance[number]} pixels far`);
    press(button, state.head === number + 1);
  }
  showWindow();
  showCharts(here.layer);
}

function dial(name, text) {
  one(`[data-out=${name}]`, root()).textContent = text;
  one(`[data-state=${name}]`, root()).setAttribute("aria-valuetext", text);
}

/** Every head of every layer: layers from left to right, heads from top to bottom. */
function showWindow() {
  const view = sight(), lattice = one(".lattice", root()), canvas = one("canvas", lattice);
  const right = view.layers.length, down = mostHeads();
  const values = (head, layer) => (head < view.layers[layer].heads ? view.look(layer, head + 1, state.token).cells : null);
  paintPanes(canvas, [down, right], view.cells, values);
  canvas.setAttribute("aria-label", `What ${view.named(state.token)} looks at in ${right} layers of ${down} heads`);
  const cursor = one(".cursor", lattice), edge = [1 / canvas.width, 1 / canvas.height];
  const wide = (1 - edge[0]) / right, high = (1 - edge[1]) / down;
  cursor.style.left = `${100 * state.layer * wide}%`;
  cursor.style.width = `${100 * (wide + edge[0])}%`;
  cursor.style.top = state.head ? `${100 * (state.head - 1) * high}%` : "0";
  cursor.style.height = state.head ? `${100 * (high + edge[1])}%` : "100%";
}

const mostHeads = () => Math.max(...sight().layers.map((layer) => layer.heads));

/** Mark the layer, and in the chart of distances the head, that is chosen. */
function showCharts(layer) {
  for (const part of all(".mark-layer")) part.classList.toggle("here", Number(part.dataset.layer) === layer);
  for (const dot of all(".dot")) {
    const head = !state.head || Number(dot.dataset.head) === state.head;
    dot.classList.toggle("here", head && Number(dot.dataset.layer) === layer);
  }
}

function showSimilarity() {
  const view = sight(), values = view.alike(state.cell), pane = one("[data-pane=similarity]", root());
  paint(one("canvas", pane), view.grid, (row, column) => values[view.cellAt(row, column)]);
  const text = told.similarity();
  pane.setAttribute("aria-label", `${text} Arrow keys choose another patch.`);
  frame(pane, state.cell);
  write("similarity", text);
}

const choose = (cell, said) => change({cell, token: sight().prefix.length + cell}, said);

function listenToPane(pane) {
  const said = pane.dataset.pane;
  const pick = (event) => {
    const box = pane.getBoundingClientRect(), [rows, columns] = sight().grid;
    const within = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    const row = within((event.clientY - box.top) / box.height, rows);
    choose(sight().cellAt(row, within((event.clientX - box.left) / box.width, columns)), said);
  };
  pane.addEventListener("click", pick);
  pane.addEventListener("pointermove", (event) => { if (event.buttons & 1 && event.pointerType === "mouse") pick(event); });
  pane.addEventListener("keydown", (event) => {
    const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const [rows, columns] = sight().cells;
    const row = Math.max(0, Math.min(rows - 1, Math.floor(state.cell / columns) + step[0]));
    const column = Math.max(0, Math.min(columns - 1, (state.cell % columns) + step[1]));
    choose(row * columns + column, said);
  });
}

function turnLayer(by) {
  if (sight().layers.length) change({layer: Math.max(0, Math.min(sight().layers.length - 1, state.layer + by))}, "attention");
}

function turnHead(by) {
  const here = sight().layers[state.layer];
  if (here) change({head: wrapped(state.head + by, here.heads + 1)}, "attention");
}

function nextToken() {
  const {layers, prefix} = sight();
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
  "[": () => turnLayer(-1), "]": () => turnLayer(1), h: () => turnHead(1), H: () => turnHead(-1), m: nextMap, c: nextToken,
  n: () => walk(1), p: () => walk(-1), "?": () => one("#help").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || one("#help").open || !one("#letters").checked) return;
  if (!Object.hasOwn(actions, event.key)) return;
  event.preventDefault();
  actions[event.key]();
});

const saying = {map: "map", layer: "attention", head: "attention"};
for (const input of all("[data-state]")) {
  input.addEventListener("input", () => {
    const name = input.dataset.state, value = input.type === "checkbox" ? input.checked : Number(input.value);
    change({[name]: value}, saying[name] ?? "");
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
    const box = lattice.getBoundingClientRect(), right = sight().layers.length, down = mostHeads();
    const layer = Math.min(right - 1, Math.floor(((event.clientX - box.left) / box.width) * right));
    change({layer, head: Math.min(down, Math.floor(((event.clientY - box.top) / box.height) * down) + 1)}, "attention");
  });
}
for (const part of all(".mark-layer, .dot")) {
  part.addEventListener("click", () => {
    const layer = sight().layers.findIndex((each) => each.layer === Number(part.dataset.layer));
    if (layer >= 0) change(part.dataset.head ? {layer, head: Number(part.dataset.head)} : {layer}, "attention");
  });
}
for (const button of all("[data-show]")) button.addEventListener("click", () => turnTo(Number(button.dataset.show)));

async function turnTo(image) {
  change({image});
  await sight().unpack();
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

begin();
turnTo(0);
