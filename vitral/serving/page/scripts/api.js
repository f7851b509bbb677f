// The server's API: requests, the token, and what can go wrong with them.

const KEY = "vitral.token";
const MOST_WAIT = 60;  // seconds until the next try, whatever the server asks for

/** What is wrong, for the reader: `kind` selects the text, the rest is what the server said. */
export class Problem extends Error {
  constructor(kind, said = {}) {
    super(said.detail || said.title || kind);
    Object.assign(this, {kind, detail: "", hint: "", code: "", request_id: "", wait: 0, values: []}, said);
    this.kind = kind;
  }
}

let token = "";

/** Take the token from the fragment of the address, and keep it for this tab alone. */
export function readToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) {
    try { token ||= sessionStorage.getItem(KEY) ?? ""; } catch { /* storage may be blocked */ }
    return false;
  }
  useToken(given);
  history.replaceState(null, "", location.pathname + location.search);  // out of sight, and out of screenshots
  return true;
}

export function useToken(given) {
  token = given;
  try { sessionStorage.setItem(KEY, token); } catch { /* asked for again after a reload */ }
}

export const currentToken = () => token;

/** The address of a path of the API with its parameters; those without a value are left out. */
export function address(path, parameters = {}) {
  const found = new URL(path, document.baseURI);
  found.hash = "";
  for (const [name, value] of Object.entries(parameters)) if (value !== undefined && value !== "") found.searchParams.set(name, value);
  return found.href;
}

export const listModels = async () => (await request("v1/models")).models;
export const readModel = (name, signal) => request(`v1/models/${encodeURIComponent(name)}`, {signal});
export const predict = (model, photo, signal) => request("v1/predict", {parameters: predictParameters(model), photo, signal});
export const explain = (model, photo, parameters, signal) => request("v1/explain", {parameters: {model, ...parameters}, photo, signal});
export const predictParameters = (model) => ({model, top: 5});

/** Whether the server answers. */
export async function isUp() {
  try { return (await fetch(address("readyz"), {cache: "no-store"})).ok; } catch { return false; }
}

async function request(path, {parameters, photo, signal} = {}) {
  const headers = {Accept: "application/json", ...(token ? {Authorization: `Bearer ${token}`} : {})};
  const options = {headers, signal, cache: "no-store", redirect: "error"};
  if (photo) {
    options.method = "POST";
    options.body = new FormData();
    options.body.append("image", photo.blob, photo.name);
  }
  try {
    const response = await fetch(address(path, parameters), options);
    if (response.ok) return await response.json();
    throw await problemOf(response, photo);
  } catch (error) {
    if (error instanceof Problem || signal?.aborted) throw error;
    throw new Problem("down");  // no answer, or one that was cut off
  }
}

async function problemOf(response, photo) {
  const said = await response.json().catch(() => ({}));
  const name = photo?.name ?? "";
  if (response.status === 401) return new Problem(token ? "wrong_token" : "unauthorized", said);
  if (response.status === 413) return new Problem("too_large", {...said, values: [name, photo?.blob.size ?? 0]});
  if (response.status === 429 || response.status === 503) return new Problem("busy", {...said, wait: waitOf(response)});
  if (response.status >= 500) return new Problem("server", said);
  const isAboutImage = String(said.code).startsWith("data.") || said.field === "image";
  return isAboutImage ? new Problem("not_image", {...said, values: [name]}) : new Problem("request", said);
}

/** Seconds until the next try: a number or a date, as HTTP has it. */
function waitOf(response) {
  const given = response.headers.get("Retry-After") ?? "";
  const seconds = /^\d+$/.test(given) ? Number(given) : (Date.parse(given) - Date.now()) / 1000;
  return Math.min(MOST_WAIT, Math.max(1, Math.ceil(Number.isFinite(seconds) ? seconds : 2)));
}
