// Calls of the driver: with the token, with the version that is known already, and with patience.

const TOKEN = "weir-token";
const PATIENCE_MS = 10_000;

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export class Unreachable extends Error {}

const known = new Map();

// Whether the driver lets the owner of the token change the job.
export const access = { mayChange: true };

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

async function call(method, path, body, headers = {}) {
  const given = token.get();
  if (given) headers.Authorization = `Bearer ${given}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, cache: "no-store", credentials: "omit", redirect: "error",
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
  } catch (error) {
    throw new Unreachable(String(error.message ?? error));
  }
  if (answer.status < 400) access.mayChange = answer.headers.get("weir-access") !== "read";
  if (answer.status === 304) return answer;
  if (answer.ok) return answer;
  let sentence = `${method} ${path}: ${answer.status}`;
  try { sentence = (await answer.json()).errors.join(" "); } catch { /* not Weir's answer */ }
  throw new Refused(answer.status, sentence);
}

// The answer of a GET; the same object as last time if nothing has changed.
export async function get(path) {
  const last = known.get(path);
  const answer = await call("GET", path, undefined, last ? { "If-None-Match": last.tag } : {});
  if (answer.status === 304) return last.value;
  let value;
  try { value = await answer.json(); } catch (error) { throw new Unreachable(String(error)); }
  if (known.size > 40) known.delete(known.keys().next().value);
  known.delete(path);
  known.set(path, { tag: answer.headers.get("etag"), value });
  return value;
}

export async function send(method, path, body) {
  const answer = await call(method, path, body);
  return answer.json();
}

// Start an operation and wait for its outcome.
export async function operate(path, body, outcome) {
  const started = await send("POST", path, body);
  for (;;) {
    const polled = await send("GET", `${outcome}/${started["request-id"]}`);
    if (polled.status.id === "COMPLETED") {
      const cause = polled.operation["failure-cause"] || polled.operation.failureCause;
      if (cause) throw new Refused(200, cause["stack-trace"]);
      return polled.operation;
    }
    await new Promise((done) => setTimeout(done, 500));
  }
}
