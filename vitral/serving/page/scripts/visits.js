// The photos of this visit. They are in the memory of this tab alone.

import {formatPercent} from "./texts.js";
import {text} from "./language.js";

const MOST = 24;

export class Visits {
  constructor(section, open) {
    Object.assign(this, {section, open, entries: []});
    this.list = section.querySelector("ul");
  }

  /** Remember what a model said about a photo; the same photo and model are remembered once. */
  add(entry) {
    this.entries = [entry, ...this.entries.filter((each) => each.photo !== entry.photo || each.model !== entry.model)];
    const dropped = this.entries.splice(MOST);
    for (const {photo} of dropped) this.release(photo);
    this.show();
  }

  holds(photo) { return this.entries.some((entry) => entry.photo === photo); }

  clear(isShown) {
    const photos = new Set(this.entries.map((entry) => entry.photo));
    this.entries = [];
    for (const photo of photos) if (!isShown(photo)) photo.release();
    this.show();
  }

  release(photo) { if (!this.holds(photo)) photo.release(); }

  show() {
    this.section.hidden = !this.entries.length;
    this.list.replaceChildren(...this.entries.map((entry) => this.item(entry)));
  }

  item(entry) {
    const {photo, model, prediction} = entry, item = document.createElement("li"), button = document.createElement("button");
    const [label, share] = prediction ? [prediction.labels[0], formatPercent(prediction.scores[0])] : [photo.name, ""];
    const picture = Object.assign(document.createElement("img"), {src: photo.thumb || "page/icon.svg", alt: ""});
    const said = Object.assign(document.createElement("span"), {className: "who", textContent: label});
    const sure = Object.assign(document.createElement("span"), {className: "much", textContent: share});
    picture.classList.toggle("tiny", photo.isTiny);
    button.type = "button";
    button.setAttribute("aria-label", text("visit", label, share, model));
    button.append(picture, said, sure);
    button.addEventListener("click", () => this.open(entry));
    item.append(button);
    return item;
  }
}
