// Addresses of views: `#/VIEW/PART?QUERY`, and with the job before that where a server has many:
// `#/jobs/ID/VIEW/PART?QUERY`.

export function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/");
  const job = parts[0] === "jobs" ? parts[1] ?? "" : "";
  const [view = "", ...rest] = parts[0] === "jobs" ? parts.slice(2) : parts;
  let part = "";
  try { part = decodeURIComponent(rest.join("/")); } catch { /* an address that nobody made */ }
  return { job, view, part, query: new URLSearchParams(query) };
}

// The address of a view of the job that the page shows, or of another job.
export function linkTo(view, part = "", query = {}, job = address().job) {
  const asked = new URLSearchParams(query).toString();
  const path = [...(job ? ["jobs", job] : []), view, ...(part ? [encodeURIComponent(part)] : [])];
  return `#/${path.join("/")}${asked ? `?${asked}` : ""}`;
}
