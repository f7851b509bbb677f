// One panel: a photo, the map over it, and what a model says about it.

import {highest, paint} from "./heatmap.js";
import {highestPatches} from "./explanation.js";
import {text, translate} from "./language.js";
import {ProblemBox} from "./problems.js";
import {formatPercent} from "./texts.js";

const NAMED = 12;  // classes that are named before a photo is there
const TOLD = 3;  // patches that are named

export class Panel {
  /** `actions` are what the page does for a panel; each is called with the panel first. */
  constructor(actions, settings) {
    this.root = document.getElementById("panel").content.cloneNode(true).firstElementChild;
    this.parts = Object.fromEntries([...this.root.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
    Object.assign(this, {actions, settings, model: null, classes: [], camera: null});
    this.problems = new ProblemBox(this.parts.problem, settings);
    this.clear();
    this.listen();
  }

  clear() {
    this.stop();
    Object.assign(this, {photo: null, prediction: null, explanation: null, milliseconds: 0, isWaiting: false});
    this.forgetPatch();
  }

  /** Show another photo; what was asked about the last one is no longer waited for. */
  setPhoto(photo) {
    this.clear();
    this.problems.clear();
    this.photo = photo;
  }

  forgetPatch() { Object.assign(this, {patch: -1, patchAttention: new Map()}); }

  /** Abort the requests on their way; the signal of the next ones. */
  stop() {
    this.stopQuestion();
    this.abort?.abort();
    this.abort = new AbortController();
    return this.abort.signal;
  }

  /** Abort the question about a patch or a class, and leave the prediction on its way. */
  stopQuestion() {
    this.question?.abort();
    this.question = new AbortController();
    return this.question.signal;
  }

  listen() {
    for (const button of this.root.querySelectorAll("[data-do]")) {
      button.addEventListener("click", () => this.actions[button.dataset.do](this));
    }
    for (const button of this.root.querySelectorAll("[data-copy]")) {
      button.addEventListener("click", () => this.actions.copy(this, button.dataset.copy));
    }
    this.parts.model.addEventListener("change", () => this.actions.model(this, this.parts.model.value));
    this.parts.drop.addEventListener("pointermove", (event) => {
      const box = this.parts.drop.getBoundingClientRect();
      this.parts.drop.style.setProperty("--x", `${event.clientX - box.left}px`);
      this.parts.drop.style.setProperty("--y", `${event.clientY - box.top}px`);
    });
    this.listenToGrid(this.parts.grid);
  }

  listenToGrid(grid) {
    const pick = (event) => {
      const box = grid.getBoundingClientRect(), [rows, columns] = this.explanation.grid;
      const within = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
      const row = within((event.clientY - box.top) / box.height, rows);
      this.actions.patch(this, row * columns + within((event.clientX - box.left) / box.width, columns));
    };
    grid.addEventListener("click", (event) => { if (this.explanation) pick(event); });
    grid.addEventListener("keydown", (event) => {
      if (!this.explanation || event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.key === "Escape") this.actions["class-token"](this);
      const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
      if (!step) return;
      event.preventDefault();
      const [rows, columns] = this.explanation.grid;
      const from = this.patch < 0 ? Math.floor(rows / 2) * columns + Math.floor(columns / 2) : this.patch;
      const [down, right] = this.patch < 0 ? [0, 0] : step;  // the first key marks the middle
      const row = Math.max(0, Math.min(rows - 1, Math.floor(from / columns) + down));
      this.actions.patch(this, row * columns + Math.max(0, Math.min(columns - 1, (from % columns) + right)));
    });
  }

  /** The attention that is shown: of the chosen patch, once it has arrived, or of the prediction. */
  get attention() { return this.patchAttention.get(this.patch) ?? this.explanation?.attention ?? null; }

  /** The values of the patches that the map of the view shows; null without a map. */
  values({map, layer, head}) {
    if (!this.explanation?.has(map) || map === "photo") return null;
    if (map !== "attention") return this.explanation.maps[map];
    const {layers, heads} = this.attention;
    return this.attention.of(Math.min(layer, layers), Math.min(head, heads));
  }

  /** The opacity of the map in percent: the reader's, or what suits the patches. */
  opacity(view) { return view.opacity ?? this.explanation?.opacity ?? 65; }

  /** The map in words. */
  describe(view) {
    const values = this.values(view);
    if (!values) return "";
    const columns = this.explanation.grid[1];
    const cell = (patch) => text("cell", Math.floor(patch / columns) + 1, (patch % columns) + 1);
    const cells = highestPatches(values, TOLD);
    if (view.map !== "attention") return text("tells_map", text(`map_${view.map}`), cells.map(cell));
    const {layers, heads} = this.attention, isPatch = this.patchAttention.has(this.patch);
    return text("tells_attention", {
      layer: Math.min(view.layer, layers), head: Math.min(view.head, heads), heads,
      token: isPatch ? text("the_patch", cell(this.patch)) : text("the_class_token"),
      cells: cells.map((patch) => `${cell(patch)} (${formatPercent(values[patch])})`),
    });
  }

  render(view) {
    const {parts} = this;
    translate(this.root);
    parts.drop.hidden = Boolean(this.photo || this.camera);
    parts.result.hidden = !this.photo && !this.camera;
    parts.examples.hidden = parts.drop.hidden || !parts.examples.querySelector("li");
    this.renderEmpty();
    if (!parts.result.hidden) {
      this.renderPhoto();
      this.renderMap(view);
      this.renderAnswer(view);
    }
    this.problems.translate();
  }

  renderEmpty() {
    const {knows, drop} = this.parts, named = this.classes.slice(0, NAMED);
    knows.hidden = drop.hidden || !this.model;
    if (this.model && !this.model.classes) knows.textContent = text("knows_none");
    else if (named.length) knows.textContent = text("knows", this.classes.length, named, this.classes.length - named.length);
    else knows.hidden = true;
  }

  renderPhoto() {
    const {photo, parts: {image, unshown, photo: frame, live}} = this;
    live.hidden = !this.camera;
    image.hidden = !photo?.url;
    unshown.hidden = !photo || Boolean(photo.url);
    if (!unshown.hidden) unshown.textContent = text("cannot_show", photo.name);
    const [height, width] = photo?.width ? [photo.height, photo.width] : this.model?.image_size ?? [3, 4];
    frame.style.setProperty("--ratio", String(width / height));
    frame.classList.toggle("tiny", Boolean(photo?.isTiny));
    if (!photo?.url) return;
    if (image.getAttribute("src") !== photo.url) image.src = photo.url;
    image.alt = photo.name;
  }

  renderMap(view) {
    const {explanation, parts: {frame, grid, canvas, telling, cursor}} = this;
    const values = this.values(view);
    frame.hidden = !explanation;
    canvas.hidden = !values;
    this.root.style.setProperty("--opacity", String(this.opacity(view) / 100));
    const [left, top, right, bottom] = explanation?.box ?? [0, 0, 1, 1];
    const sides = {left, top, width: right - left, height: bottom - top};
    for (const [side, share] of Object.entries(sides)) frame.style[side] = `${100 * share}%`;
    if (values) {
      const most = highest(values), columns = explanation.grid[1];
      paint(canvas, explanation.grid, (row, column) => values[row * columns + column] / most);
    }
    const told = this.describe(view);
    telling.textContent = [explanation && text("patches", ...explanation.grid), told].filter(Boolean).join(" ");
    grid.setAttribute("aria-label", text("grid_label", told || text("about_photo")));
    grid.setAttribute("aria-roledescription", text("grid_role"));
    const hasPatch = this.patch >= 0 && view.map === "attention" && Boolean(explanation);
    this.root.querySelector("[data-do=class-token]").hidden = !hasPatch;
    cursor.hidden = !hasPatch;
    if (!cursor.hidden) this.placeCursor(cursor, explanation.grid);
  }

  placeCursor(cursor, [rows, columns]) {
    const row = Math.floor(this.patch / columns), column = this.patch % columns;
    const sides = {top: row / rows, left: column / columns, height: 1 / rows, width: 1 / columns};
    for (const [side, share] of Object.entries(sides)) cursor.style[side] = `${100 * share}%`;
  }

  renderAnswer({map}) {
    const {prediction, photo, parts: {kicker, said, sure, bars, meta, answer}} = this;
    const hasClasses = !this.model || this.model.classes > 0;
    answer.setAttribute("aria-busy", String(this.isWaiting));
    kicker.textContent = text(this.camera ? "live_prediction" : "prediction");
    said.classList.toggle("pending", !prediction && hasClasses);
    said.textContent = prediction ? prediction.labels[0] : text(hasClasses ? (this.isWaiting ? "waiting" : "no_answer") : "features_only");
    sure.textContent = prediction ? formatPercent(prediction.scores[0]) : "\u00a0";
    meta.textContent = photo ? text("meta", {...photo, name: photo.name, width: photo.width, height: photo.height, milliseconds: this.milliseconds}) : "";
    this.parts["bars-hint"].hidden = !prediction || !this.explanation?.maps.relevance;
    this.renderBars(bars, prediction, map);
    for (const button of this.root.querySelectorAll("[data-copy=json]")) button.disabled = !prediction;
    for (const button of this.root.querySelectorAll("[data-copy=curl], [data-copy=python]")) button.disabled = !photo || !hasClasses;
  }

  /** Bars are kept and changed in place, so that the focus stays where it is and widths can grow. */
  renderBars(bars, prediction, map) {
    const labels = prediction?.labels ?? [], canExplain = Boolean(this.explanation?.maps.relevance);
    while (bars.children.length > labels.length) bars.lastElementChild.remove();
    while (bars.children.length < labels.length) bars.append(this.newBar());
    [...bars.children].forEach((item, number) => {
      const button = item.firstElementChild, share = formatPercent(prediction.scores[number]);
      const isExplained = canExplain && map === "relevance" && this.explanation.label === labels[number];
      button.querySelector(".who").textContent = labels[number];
      button.querySelector(".much").textContent = share;
      button.querySelector("i").style.width = `${Math.max(0, Math.min(100, 100 * prediction.scores[number]))}%`;
      button.disabled = !canExplain;
      button.setAttribute("aria-pressed", String(isExplained));
      button.setAttribute("aria-label", canExplain ? text("evidence_for", labels[number], share) : `${labels[number]}, ${share}`);
      item.classList.toggle("explained", isExplained);
    });
  }

  newBar() {
    const item = document.createElement("li"), button = document.createElement("button"), rail = document.createElement("span");
    const span = (className) => Object.assign(document.createElement("span"), {className});
    rail.className = "rail";
    rail.append(document.createElement("i"));
    button.type = "button";
    button.append(span("who"), span("much"), rail);
    button.addEventListener("click", () => this.actions.evidence(this, button.querySelector(".who").textContent));
    item.append(button);
    return item;
  }
}
