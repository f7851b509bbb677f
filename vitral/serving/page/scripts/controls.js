// The controls that all panels share: which map, layer and head, and how it lies over the photo.

import {highest, paint} from "./heatmap.js";
import {text} from "./language.js";

export class Controls {
  /** `view` is changed in place; `changed` is called with the name of what changed. */
  constructor(root, view, changed) {
    Object.assign(this, {root, view, changed});
    this.parts = Object.fromEntries(["about-map", "dials", "heads"].map((id) => [id, document.getElementById(id)]));
    for (const input of root.querySelectorAll("[data-state]")) {
      input.addEventListener("input", () => {
        const name = input.dataset.state;
        this.view[name] = input.type === "checkbox" ? input.checked : input.type === "radio" ? input.value : Number(input.value);
        changed(name);
      });
    }
  }

  /** Show what the panels have maps for; `home` is where the controls stand. */
  render(panels, home) {
    const {root, view} = this, shown = panels.filter((panel) => panel.photo);
    const cannot = shown.length > 0 && shown.every((panel) => !panel.model.explain);
    const explained = shown.map((panel) => panel.explanation).filter(Boolean);
    root.hidden = !explained.length && !cannot;
    root.classList.toggle("cannot", cannot);
    if (home && home.id === "panels") home.before(root);
    else if (home && root.parentElement !== home) home.append(root);
    for (const input of root.querySelectorAll("[data-state=map]")) {
      input.checked = input.value === view.map;
      input.parentElement.hidden = !explained.some((each) => each.has(input.value));
    }
    root.querySelector("[data-state=opacity]").value = String(shown[0]?.opacity(view) ?? 65);
    root.querySelector("[data-state=smooth]").checked = view.smooth;
    const label = explained.length === 1 ? explained[0].label : "";
    this.parts["about-map"].textContent = cannot ? text("about_no_attention") : text(`about_${view.map}`, label);
    this.renderDials(shown);
  }

  renderDials(shown) {
    const {view, parts: {dials, heads}} = this, attentions = shown.map((panel) => panel.attention).filter(Boolean);
    dials.hidden = view.map !== "attention" || !attentions.length;
    heads.hidden = dials.hidden || attentions.length > 1;
    if (dials.hidden) return;
    const layers = Math.max(...attentions.map((each) => each.layers)), most = Math.max(...attentions.map((each) => each.heads));
    const layer = Math.min(view.layer, layers), head = Math.min(view.head, most);
    this.dial("layer", layer, layers, text("of", layer, layers));
    this.dial("head", head, most, head ? text("of", head, most) : text("mean_of", most));
    if (!heads.hidden) this.renderHeads(shown.find((panel) => panel.attention), layer, head);
  }

  dial(name, value, most, told) {
    const input = this.root.querySelector(`[data-state=${name}]`);
    input.max = String(most);
    input.value = String(value);
    input.setAttribute("aria-valuetext", told);
    this.root.querySelector(`[data-out=${name}]`).textContent = told;
  }

  /** The heads of the layer side by side; a click shows one of them, another the mean again. */
  renderHeads({attention, explanation}, layer, head) {
    const {heads} = this.parts, {grid} = explanation;
    while (heads.children.length > attention.heads) heads.lastElementChild.remove();
    while (heads.children.length < attention.heads) heads.append(this.newHead(heads.children.length + 1));
    heads.style.setProperty("--shape", `${grid[1]} / ${grid[0]}`);
    [...heads.children].forEach((button, number) => {
      const values = attention.of(layer, number + 1), most = highest(values);
      paint(button.firstElementChild, grid, (row, column) => values[row * grid[1] + column] / most);
      button.setAttribute("aria-pressed", String(head === number + 1));
      button.setAttribute("aria-label", text("head_number", number + 1));
    });
  }

  newHead(number) {
    const button = Object.assign(document.createElement("button"), {type: "button"}), canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true");
    button.append(canvas, Object.assign(document.createElement("span"), {textContent: String(number)}));
    button.addEventListener("click", () => {
      this.view.head = this.view.head === number ? 0 : number;
      this.changed("head");
    });
    return button;
  }
}
