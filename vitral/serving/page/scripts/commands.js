// The request of a photo as text to copy: for a shell, for Python, and its answer as JSON.

const BEARER = "Authorization";

/** Text as one word of a POSIX shell: nothing in single quotes is special to it. */
const shellWord = (value) => `'${value.replaceAll("'", `'\\''`)}'`;

/** A file name that is safe to paste: control and invisible characters could leave the line they stand in. */
export function fileName(name) {
  const last = name.split(/[\\/]/).pop();
  if (last && !/[\p{C}\p{Zl}\p{Zp}]/u.test(last)) return last;
  const extension = /\.[A-Za-z0-9]{1,5}$/.exec(last ?? "")?.[0] ?? ".jpg";
  return `photo${extension}`;
}

const headersOf = ({type, token}) => ({"Content-Type": type, ...(token ? {[BEARER]: `Bearer ${token}`} : {})});

/** A curl command; `./` keeps names such as `-` from being options. */
export function curlCommand({address, name, type, token}) {
  const headers = Object.entries(headersOf({type, token})).map(([key, value]) => `-H ${shellWord(`${key}: ${value}`)}`);
  return ["curl -sS", shellWord(address), ...headers, `--data-binary ${shellWord(`@./${fileName(name)}`)}`].join(" \\\n  ");
}

/** A Python program that needs no package. JSON strings are Python strings too. */
export function pythonProgram({address, name, type, token}) {
  return `import json
from pathlib import Path
from urllib.request import Request, urlopen

request = Request(
    ${JSON.stringify(address)},
    data=Path(${JSON.stringify(fileName(name))}).read_bytes(),
    headers=${JSON.stringify(headersOf({type, token}))},
)
with urlopen(request) as response:
    prediction = json.load(response)["predictions"][0]
for label, score in zip(prediction["labels"], prediction["scores"]):
    print(f"{score:.1%} {label}")
`;
}
