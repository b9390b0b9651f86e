// Runs in a page: uploads, sees a refusal and its wait, polls to the end, and reports to the server the page is from.
// Its settings are in the global `SETTINGS`.
const { api, full, token, photo, report } = globalThis.SETTINGS;
const bearer = (value) => ({ Authorization: `Bearer ${value}` });
const seen = { steps: [] };

function form() {
  const bytes = Uint8Array.from(atob(photo), (character) => character.charCodeAt(0));
  const body = new FormData();
  body.append("file", new Blob([bytes], { type: "image/jpeg" }), "photo.jpg");
  return body;
}

async function upload(url, value, key) {
  const headers = { ...bearer(value), "Idempotency-Key": key };
  return fetch(`${url}/api/v1/images`, { method: "POST", headers, body: form() });
}

try {
  const key = crypto.randomUUID();
  const accepted = await upload(api, token, key);
  seen.accepted = { status: accepted.status, location: accepted.headers.get("Location"), wait: accepted.headers.get("Retry-After") };
  const replayed = await upload(api, token, key);
  seen.replayed = { status: replayed.status, marked: replayed.headers.get("Idempotency-Replayed") };
  const refused = await upload(full.url, full.token, crypto.randomUUID()).then(
    async (answer) => ({ status: answer.status, wait: answer.headers.get("Retry-After"), code: (await answer.json()).code }),
    (error) => ({ status: 0, error: String(error) }),
  );
  seen.refused = refused;
  for (let look = 0; look < 60; look += 1) {
    const answer = await fetch(`${api}${seen.accepted.location}`, { headers: { ...bearer(token), Prefer: "wait=5" } });
    const job = await answer.json();
    if (seen.steps.at(-1) !== job.status) seen.steps.push(job.status);
    if (["ready", "failed", "cancelled"].includes(job.status)) break;
  }
} catch (error) {
  seen.error = String(error);
}
await fetch(report, { method: "POST", body: JSON.stringify(seen) });
