// What is asked about a photo: the prediction and the maps at once, then the attention of a patch, the evidence for a class.

import {explain, predict} from "./api.js";
import {Attention, Explanation} from "./explanation.js";

const MAPS = "attention,rollout,relevance";

const mapsOf = (model) => (model.classes ? MAPS : "attention,rollout");

async function askPrediction(model, photo, signal) {
  const answer = await predict(model.name, photo, signal);
  return {...answer.predictions[0], answer};
}

async function askMaps(model, photo, label, signal) {
  return new Explanation(await explain(model.name, photo, {maps: mapsOf(model), query: "cls", label}, signal));
}

/** Ask for what the panel does not have yet, show each answer when it comes, and raise what went wrong first. */
export async function analyze(panel, changed) {
  const {photo, model} = panel, signal = panel.stop(), started = performance.now();
  panel.isWaiting = true;
  changed();
  const asked = [];
  if (model.classes && !panel.prediction) {
    asked.push(askPrediction(model, photo, signal).then((prediction) => {
      if (signal.aborted) return;
      Object.assign(panel, {prediction, milliseconds: Math.round(performance.now() - started), isWaiting: false});
      changed();
    }));
  }
  if (model.explain && !panel.explanation) {
    asked.push(askMaps(model, photo, undefined, signal).then((explanation) => {
      if (signal.aborted) return;
      panel.explanation = explanation;
      changed();
    }));
  }
  const ends = await Promise.allSettled(asked);
  if (signal.aborted) return false;
  panel.isWaiting = false;
  changed();
  const failed = ends.find((end) => end.status === "rejected");
  if (failed) throw failed.reason;
  return true;
}

/** Ask about one frame of the camera; the photo, its prediction and its maps change together. */
export async function analyzeFrame(panel, photo, changed) {
  const {model, abort: {signal}} = panel, started = performance.now();
  const [prediction, explanation] = await Promise.all([
    model.classes ? askPrediction(model, photo, signal) : null,
    model.explain ? askMaps(model, photo, undefined, signal) : null,
  ]);
  if (signal.aborted) return;
  const last = panel.photo;
  Object.assign(panel, {photo, prediction, explanation, milliseconds: Math.round(performance.now() - started)});
  panel.forgetPatch();
  changed();
  await panel.parts.image.decode().catch(() => {});  // the last frame is shown until this one is
  last?.release();
}

/** The attention of a patch; asked for once. */
export async function askPatch(panel, patch, signal) {
  if (panel.patchAttention.has(patch)) return;
  const kept = panel.patchAttention;
  const answer = await explain(panel.model.name, panel.photo, {maps: "attention", query: String(patch)}, signal);
  kept.set(patch, new Attention(answer.attention));
}

/** The relevance of the patches for a class, in place of that for the class shown before. */
export async function askEvidence(panel, label, signal) {
  const {explanation} = panel;
  if (explanation.label === label) return;
  const answer = await explain(panel.model.name, panel.photo, {maps: "relevance", query: "cls", label}, signal);
  Object.assign(explanation, {label: answer.label, maps: {...explanation.maps, relevance: Float32Array.from(answer.relevance)}});
}
