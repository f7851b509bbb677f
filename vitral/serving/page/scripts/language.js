// The language of the page: the browser's, until the reader switches it.

import {TEXTS} from "./texts.js";

const KEY = "vitral.language";
const preferred = () => ((navigator.languages ?? [navigator.language])[0] ?? "en").toLowerCase().startsWith("zh") ? "zh" : "en";
const remembered = () => {
  try { return localStorage.getItem(KEY); } catch { return null; }  // storage may be blocked
};
let language = Object.hasOwn(TEXTS, remembered() ?? "") ? remembered() : preferred();

/** The text of a key in the language of the page; what changes in it follows the key. */
export function text(key, ...values) {
  const found = TEXTS[language][key];
  return typeof found === "function" ? found(...values) : found;
}

/** Write the texts of all marked elements inside a part of the page. */
export function translate(root = document) {
  for (const part of root.querySelectorAll("[data-t]")) part.textContent = text(part.dataset.t);
  for (const part of root.querySelectorAll("[data-t-label]")) part.setAttribute("aria-label", text(part.dataset.tLabel));
  if (root !== document) return;
  document.documentElement.lang = text("locale");
  const button = document.getElementById("language");
  button.textContent = text("other");
  button.lang = language === "en" ? "zh-CN" : "en";
}

export function switchLanguage() {
  language = language === "en" ? "zh" : "en";
  try { localStorage.setItem(KEY, language); } catch { /* not remembered where storage is blocked */ }
  translate();
}
