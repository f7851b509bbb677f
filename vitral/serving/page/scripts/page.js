// The page: one view for all panels, rendered again whenever something changes.

import * as api from "./api.js";
import {analyze, analyzeFrame, askEvidence, askPatch} from "./analysis.js";
import {Camera, hasCamera} from "./camera.js";
import {curlCommand, pythonProgram} from "./commands.js";
import {parseJson} from "./heatmap.js";
import {switchLanguage, text, translate} from "./language.js";
import {Panel} from "./panel.js";
import {drawThumb, fileOf, listenForPhotos, nameFor, openPhoto} from "./photos.js";
import {drawPicture, save} from "./picture.js";
import {ProblemBox} from "./problems.js";
import {Controls} from "./controls.js";
import {formatPercent} from "./texts.js";
import {Visits} from "./visits.js";

const one = (selector, from = document) => from.querySelector(selector);
const isTouch = matchMedia("(pointer: coarse)").matches;
const settings = parseJson("settings");
const view = {map: "attention", layer: Infinity, head: 0, opacity: null, smooth: false};
const page = {models: [], panels: [], receiver: null, used: null};
const problems = new ProblemBox(one("#problem"), settings);
const controls = new Controls(one("#controls"), view, (name) => {
  render();
  if (name !== "opacity" && name !== "smooth") announce(page.panels.map((panel) => panel.describe(view)).filter(Boolean).join(" ") || text(`about_${view.map}`));
});
const visits = new Visits(one("#history"), openVisit);

const announce = (told) => { one("#live").textContent = told; };

function toast(told) {
  const box = one("#toast");
  box.textContent = told;
  box.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { box.hidden = true; }, 4000);
  announce(told);
}

function render() {
  const {panels, models} = page, isComparing = panels.length > 1;
  const isStarted = panels.some((panel) => panel.photo || panel.camera);
  document.documentElement.classList.toggle("started", isStarted);
  document.documentElement.classList.toggle("comparing", isComparing);
  document.documentElement.classList.toggle("smooth", view.smooth);
  const name = isComparing ? "" : panels[0]?.model?.name;
  one("#title").textContent = name ? text("title_of", name) : text("title");
  document.title = `${one("#title").textContent} · vitral`;
  one("#version").textContent = text("version", settings.version);
  one("#tools").hidden = !isStarted;
  for (const each of ["choose", "camera"]) one(`#tools [data-do=${each}]`).hidden = isComparing;
  one("#tools [data-do=compare]").setAttribute("aria-pressed", String(isComparing));
  panels.forEach((panel, number) => {
    panel.root.classList.toggle("with-head", isComparing || models.length > 1);
    one(".pick", panel.root).hidden = models.length < 2;
    one(".panel-head [data-do=choose]", panel.root).hidden = !isComparing || !(panel.photo || panel.camera);
    one("[data-do=close]", panel.root).hidden = !isComparing;
    one("[data-do=same]", panel.root).hidden = !isComparing || !panels[1 - number]?.photo;
    one(".drop-title", panel.root).dataset.t = isTouch ? "drop_touch" : number ? "drop_second" : "drop";
    one("[data-part=paste-hint]", panel.root).dataset.t = navigator.platform.startsWith("Mac") ? "paste_mac" : "paste";
    panel.root.setAttribute("aria-label", [panel.model?.name, panel.photo?.name].filter(Boolean).join(", "));
    panel.render(view);
  });
  controls.render(panels, isComparing ? one("#panels") : panels[0]?.parts.controls);
}

/** The panel that gets a photo: where it was dropped, else one that is empty, else the last one that was used. */
function panelFor(target) {
  return page.panels.find((panel) => target && panel.root.contains(target))
    ?? page.panels.find((panel) => !panel.photo) ?? page.panels.find((panel) => panel === page.used) ?? page.panels[0];
}

async function receive(panel, blob, name) {
  if (!panel?.model) return;
  panel.received = blob;
  try {
    const photo = await openPhoto(blob, name, settings.mostBytes);
    if (panel.received !== blob) return photo.release();  // a later one was quicker to open
    await stopCamera(panel);
    panel.setPhoto(photo);
    announce(text("announce_photo", name));
    await look(panel);
  } catch (problem) {
    complain(panel, problem);
  }
}

/** Ask the server about the panel's photo, and remember the answer. */
async function look(panel) {
  try {
    if (!(await analyze(panel, render))) return;
    panel.problems.clear();
    remember(panel);
    const {prediction} = panel;
    announce([prediction && text("said", prediction.labels[0], formatPercent(prediction.scores[0])), panel.describe(view)].filter(Boolean).join(" "));
  } catch (problem) {
    complain(panel, problem, () => look(panel));
  }
}

function remember(panel) {
  const {photo, model, prediction, explanation, milliseconds} = panel;
  visits.add({photo, model: model.name, prediction, explanation, milliseconds});
}

/** Show what went wrong; what is no Problem is a defect and stays visible as one. */
function complain(panel, problem, retry = null) {
  if (problem.name === "AbortError") return;
  if (!(problem instanceof api.Problem)) throw problem;
  const canRetry = ["down", "busy", "server"].includes(problem.kind) ? retry : null;
  const enterToken = retry && ((token) => { api.useToken(token); retry(); });
  (panel?.problems ?? problems).show(problem, {retry: canRetry, enterToken, canClose: Boolean(panel)});
  render();
}

function openVisit(entry) {
  const panel = panelFor(null);
  stopCamera(panel);
  panel.setPhoto(entry.photo);
  setModel(panel, entry.model);
  Object.assign(panel, {prediction: entry.prediction, explanation: entry.explanation, milliseconds: entry.milliseconds});
  render();
  announce(panel.describe(view));
  panel.parts.grid.focus({preventScroll: true});
  panel.root.scrollIntoView({block: "nearest"});
}

async function setModel(panel, name) {
  const model = page.models.find((each) => each.name === name) ?? page.models[0];
  panel.model = model;
  panel.parts.model.value = model.name;
  showExamples(panel);
  model.names ??= api.readModel(model.name).then((detail) => detail.class_names, () => { model.names = null; return []; });
  const names = await model.names;
  if (panel.model !== model) return;  // another one was chosen meanwhile
  panel.classes = names;
  render();
}

function showExamples(panel) {
  const list = one("ul", panel.parts.examples), found = settings.examples[panel.model.name] ?? [];
  list.replaceChildren(...found.map(({label, path}) => {
    const item = document.createElement("li"), button = Object.assign(document.createElement("button"), {type: "button"});
    button.setAttribute("aria-label", text("example", label));
    button.append(Object.assign(document.createElement("img"), {src: path, alt: ""}));
    button.addEventListener("click", async () => {
      const response = await fetch(path).catch(() => null);
      if (response?.ok) receive(panel, await response.blob(), path.split("/").pop());
      else complain(panel, new api.Problem("down"), () => button.click());
    });
    item.append(button);
    return item;
  }));
}

function addPanel(modelName) {
  const panel = new Panel(actions, settings);
  panel.parts.model.replaceChildren(...page.models.map(({name}) => new Option(name, name)));
  page.panels.push(panel);
  one("#panels").append(panel.root);
  panel.root.addEventListener("focusin", () => { page.used = panel; });
  setModel(panel, modelName);
  return panel;
}

const actions = {
  choose(panel) {
    page.receiver = panel;
    one("#file").click();
  },

  async camera(panel) {
    if (!hasCamera()) {
      page.receiver = panel;
      one("#capture").click();  // phones then open their own camera
      return;
    }
    try {
      panel.clear();
      panel.problems.clear();
      panel.parts.rate.textContent = text("starting");
      panel.camera = await Camera.open(panel.parts.video);
      panel.parts.video.hidden = false;
      render();
      one("[data-do=take]", panel.root).focus();
      await runLive(panel, panel.camera);
    } catch (problem) {
      await stopCamera(panel);
      complain(panel, problem);
    }
  },

  async take(panel) {
    if (!panel.photo) return;
    panel.photo.thumb = drawThumb(await createImageBitmap(panel.photo.blob));
    await stopCamera(panel);
    remember(panel);
    render();
    panel.parts.grid.focus({preventScroll: true});
  },

  async stop(panel) {
    await stopCamera(panel);
    panel.photo?.release();
    panel.clear();
    render();
    one(".drop [data-do=camera]", panel.root).focus();
  },

  compare() {
    if (page.panels.length > 1) return actions.close(page.panels[1]);
    const [first] = page.panels, other = page.models.find((model) => model.name !== first.model.name);
    const second = addPanel((other ?? first.model).name);
    render();
    if (other && first.photo && !first.camera) actions.same(second);
    else one(".drop [data-do=choose]", second.root).focus();
  },

  same(panel) {
    panel.setPhoto(page.panels.find((each) => each !== panel).photo);
    look(panel);
  },

  async close(panel) {
    await stopCamera(panel);
    panel.clear();
    panel.problems.clear();
    page.panels.splice(page.panels.indexOf(panel), 1);
    panel.root.remove();
    render();
    one("#tools [data-do=compare]").focus();
  },

  model(panel, name) {
    const {photo} = panel;
    setModel(panel, name);
    if (panel.camera || !photo) return;
    panel.setPhoto(photo);
    look(panel);
  },

  async patch(panel, patch) {
    if (panel.camera) await actions.take(panel);  // the answer is about this frame
    panel.patch = patch;
    view.map = "attention";
    render();
    await ask(panel, (signal) => askPatch(panel, patch, signal));
  },

  "class-token"(panel) {
    panel.patch = -1;
    render();
    announce(panel.describe(view));
  },

  async evidence(panel, label) {
    if (panel.camera) await actions.take(panel);
    view.map = "relevance";
    render();
    await ask(panel, (signal) => askEvidence(panel, label, signal));
  },

  async copy(panel, kind) {
    const token = api.currentToken(), {photo, model, prediction} = panel;
    const parts = {address: api.address("v1/predict", api.predictParameters(model.name)), name: photo.name, type: photo.blob.type || "application/octet-stream", token};
    const copies = {curl: () => curlCommand(parts), python: () => pythonProgram(parts), json: () => JSON.stringify(prediction.answer, null, 2)};
    const name = {curl: "curl", python: "Python", json: "JSON"}[kind];
    try {
      await navigator.clipboard.writeText(copies[kind]());
      toast(text(token && kind !== "json" ? "copied_token" : "copied", name));
    } catch {
      showText(copies[kind]());
    }
  },

  async download(panel) {
    const {photo, prediction, parts: {image}} = panel, values = panel.values(view);
    if (!values || !photo.url) return save(photo.blob, photo.name);
    const said = prediction ? `${prediction.labels[0]} ${formatPercent(prediction.scores[0])}` : panel.model.name;
    const caption = `${said} · ${panel.describe(view)}`;
    const blob = await drawPicture({image, explanation: panel.explanation, values, opacity: panel.opacity(view) / 100, isSmooth: view.smooth, caption});
    save(blob, `${photo.name.replace(/\.[^.]*$/, "")}-${view.map}.png`);
  },

  forget() {
    visits.clear((photo) => page.panels.some((panel) => panel.photo === photo));
    one("#panels").focus();
  },
};

/** Ask for one more map; only the last question of a panel is waited for. */
async function ask(panel, question) {
  const signal = panel.stopQuestion();
  try {
    await question(signal);
    if (signal.aborted) return;
    panel.problems.clear();
    render();
    announce(panel.describe(view));
  } catch (problem) {
    if (!signal.aborted) complain(panel, problem, () => ask(panel, question));
  }
}

/** Frames of the camera, one after the other, at the rate at which they are answered. */
async function runLive(panel, camera) {
  let rate = 0, said = "";
  while (camera.isOpen) {
    const started = performance.now(), photo = await camera.frame();
    if (!camera.isOpen) return;
    try {
      await analyzeFrame(panel, photo, render);
      panel.problems.clear();
    } catch (problem) {
      photo.release();
      if (!camera.isOpen) return;
      if (problem.kind !== "busy") throw problem;
      panel.problems.show(problem);
      await new Promise((done) => { setTimeout(done, 1000 * problem.wait); });
      continue;
    }
    const now = 1000 / (performance.now() - started);
    rate = rate ? 0.8 * rate + 0.2 * now : now;
    panel.parts.rate.textContent = text("rate", rate.toFixed(1));
    const label = panel.prediction?.labels[0] ?? "";
    if (label !== said) announce(text("said", label, formatPercent(panel.prediction.scores[0])));  // not every frame
    said = label;
  }
}

async function stopCamera(panel) {
  panel.camera?.close();
  panel.camera = null;
  panel.parts.video.hidden = true;
  panel.stop();
}

/** Where the clipboard is blocked (a page without https): the text, selected, for the reader to copy. */
function showText(content) {
  const box = document.createElement("dialog"), area = document.createElement("textarea");
  area.value = content;
  area.readOnly = true;
  area.setAttribute("aria-label", text("copy"));
  const close = Object.assign(document.createElement("button"), {type: "button", className: "plain", textContent: text("close")});
  close.addEventListener("click", () => box.close());
  box.addEventListener("close", () => box.remove());
  box.append(Object.assign(document.createElement("p"), {textContent: text("not_copied")}), area, close);
  document.body.append(box);
  box.showModal();
  area.select();
}

async function start() {
  problems.clear();
  try {
    page.models = await api.listModels();
    if (!page.models.length) throw new api.Problem("no_model");
    if (!page.panels.length) addPanel(page.models[0].name);
    render();
    document.documentElement.dataset.ready = "true";
  } catch (problem) {
    complain(null, problem, start);
  }
}

function listen() {
  for (const input of [one("#file"), one("#capture")]) {
    input.addEventListener("change", () => {
      const [file] = input.files;
      input.value = "";
      if (file) receive(page.receiver ?? panelFor(null), file, file.name);
    });
  }
  listenForPhotos((transfer, target) => {
    const panel = panelFor(target);
    try {
      const file = fileOf(transfer);
      receive(panel, file, target ? file.name : nameFor("pasted", file.type));
    } catch (problem) {
      complain(panel, problem);
    }
  });
  for (const button of document.querySelectorAll("main > .heading [data-do], #history [data-do]")) {
    button.addEventListener("click", () => actions[button.dataset.do](page.panels[0]));
  }
  one("#language").addEventListener("click", () => {
    switchLanguage();
    render();
    visits.show();
    problems.translate();
  });
  const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const press = () => one("#theme").setAttribute("aria-pressed", String(dark()));
  one("#theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    press();
  });
  press();
  window.addEventListener("hashchange", () => { if (api.readToken()) start(); });
}

translate();
listen();
api.readToken();
start();
