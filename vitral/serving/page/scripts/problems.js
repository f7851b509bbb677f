// What is wrong, said plainly: what happened, what to do, and a way to go on.

import {isUp} from "./api.js";
import {text} from "./language.js";

const KNOWN = new Set(["down", "busy", "unauthorized", "wrong_token", "not_image", "too_large", "empty", "no_file", "camera", "no_model", "server", "request"]);
const SAME_HINT = {empty: "not_image", wrong_token: "unauthorized"};
const LONGEST = 15;  // seconds between two looks at a server that is down

const element = (tag, className, content = "") => Object.assign(document.createElement(tag), {className, textContent: content});

function button(label, className, action) {
  const found = Object.assign(element("button", className, label), {type: "button"});
  found.addEventListener("click", action);
  return found;
}

/** A box of the page that shows at most one problem; `settings.mostBytes` is the server's limit for a file. */
export class ProblemBox {
  constructor(box, settings) {
    Object.assign(this, {box, settings, timer: 0, problem: null});
  }

  clear() {
    clearTimeout(this.timer);
    this.problem = null;
    this.box.hidden = true;
    this.box.replaceChildren();
  }

  /** `retry` is called after the wait of a busy server, once one that was down is back, and by the reader. */
  show(problem, {retry = null, enterToken = null, canClose = true} = {}) {
    const isSame = this.problem?.kind === problem.kind && !this.box.hidden;
    this.clear();
    this.problem = problem;
    this.again = () => this.show(problem, {retry, enterToken, canClose});
    const words = this.words(problem), actions = element("p", "problem-actions");
    const hint = element("p", "problem-hint", words.hint);
    this.box.setAttribute("role", isSame ? "group" : "alert");  // the same again is not announced again
    this.box.classList.toggle("passing", problem.kind === "busy");
    this.box.append(element("p", "problem-title", words.title), hint);
    if (enterToken && ["unauthorized", "wrong_token"].includes(problem.kind)) this.box.append(tokenForm(enterToken));
    if (problem.kind === "busy" && retry) this.countDown(problem.wait, hint, retry);
    if (problem.kind === "down" && retry) this.waitUntilUp(1, retry);
    if (retry) actions.append(button(text(problem.kind === "busy" ? "try_now" : "try_again"), "plain small", () => this.go(retry)));
    if (canClose) actions.append(button(text("close"), "plain small", () => this.clear()));
    this.box.append(actions);
    if (words.more) {
      const more = element("details", "problem-more");
      more.append(element("summary", "", text("details")), element("p", "", words.more));
      this.box.append(more);
    }
    this.box.hidden = false;
  }

  translate() { if (this.problem) this.again(); }

  go(retry) {
    clearTimeout(this.timer);
    retry();
  }

  words({kind, detail, hint, code, request_id: id, values}) {
    const known = KNOWN.has(kind) ? kind : "request";
    const plain = known === "request" ? hint || detail : text(`hint_${SAME_HINT[known] ?? known}`, this.settings.mostBytes);
    const more = [known === "request" && !hint ? "" : detail, known === "request" ? "" : hint, code && `(${code})`, id && text("request_id", id)];
    return {title: text(`problem_${known}`, ...values), hint: plain ?? "", more: more.filter(Boolean).join(" ")};
  }

  countDown(seconds, hint, retry) {
    hint.setAttribute("aria-live", "off");  // the numbers are for the eyes
    hint.textContent = text("hint_busy", seconds);
    this.timer = setTimeout(() => (seconds > 1 ? this.countDown(seconds - 1, hint, retry) : this.go(retry)), 1000);
  }

  waitUntilUp(seconds, retry) {
    this.timer = setTimeout(async () => {
      const problem = this.problem, found = !document.hidden && (await isUp());
      if (problem !== this.problem) return;  // something else is shown by now
      if (found) this.go(retry);
      else this.waitUntilUp(Math.min(LONGEST, 1.5 * seconds), retry);
    }, 1000 * seconds);
  }
}

function tokenForm(enterToken) {
  const form = element("form", "token"), label = element("label", "", `${text("token")} `);
  const input = Object.assign(element("input", ""), {type: "password", name: "token", autocomplete: "off", required: true});
  label.append(input);
  form.append(label, Object.assign(element("button", "primary small", text("enter")), {type: "submit"}));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    enterToken(input.value.trim());
  });
  return form;
}
