// A client of Spillway in JavaScript, written from contracts/ alone. Node 20 or newer, no dependencies:
//
//     SPILLWAY_TOKEN=… node examples/client.mjs photo.jpg [--url http://127.0.0.1:8080] [--save DIR]
//
// It uploads one file under an Idempotency-Key, follows its job, and with --save writes every result whose SHA-256 is
// the announced one. The last line on standard output is JSON: {outcome, job_id, code, tries, saved}. Exit code 0 when
// the job is ready, 1 when it is not, 2 for wrong use.
import { createHash, randomUUID } from "node:crypto";
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { basename, extname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

const DEADLINE_MS = 600_000;
const UPLOAD_TRIES_MAX = 5;
const DOWNLOAD_TRIES_MAX = 3;
const LOOK_FAILURES_MAX = 5;
const REQUEST_TIMEOUT_MS = 60_000;
const POLL_PAUSES_S = [3, 5, 8, 15]; // after the first one, which the server names; the last one repeats
const REFUSED_PAUSE_S = 2;
const RETRY_AFTER_S_MAX = 86_400; // the deadline comes first
const JITTER = 0.2;

const FINAL = new Set(["ready", "failed", "cancelled", "expired"]); // any other status, known or not, is waited out
const GONE = new Set([401, 403, 404, 410]);
const REFUSED = new Set([429, 500, 502, 503, 504]);
const SUFFIXES = { "image/jpeg": "jpg", "image/webp": "webp" };

const longer = (pauseS) => pauseS * (1 + Math.random() * JITTER);
const shorter = (pauseS) => pauseS * (1 - Math.random() * JITTER);
const say = (text) => process.stderr.write(`${text}\n`);

function retryAfterS(answer) {
  const value = answer?.headers.get("Retry-After") ?? "";
  return /^\d+$/.test(value) ? Math.min(Number(value), RETRY_AFTER_S_MAX) : null;
}

async function request(url, options, deadline) {
  const patience = AbortSignal.timeout(REQUEST_TIMEOUT_MS);
  try {
    const answer = await fetch(url, { ...options, redirect: "error", signal: AbortSignal.any([patience, deadline]) });
    return { answer, body: Buffer.from(await answer.arrayBuffer()) };
  } catch (error) {
    if (deadline.aborted) throw error;
    return { answer: null, body: Buffer.alloc(0), reason: error.cause?.code ?? error.name };
  }
}

function documentOf(body) {
  try {
    return JSON.parse(body.toString("utf8")) ?? {};
  } catch {
    return {};
  }
}

async function upload(api, path, deadline, note) {
  const bytes = await readFile(path);
  const digest = createHash("sha256").update(bytes).digest("base64");
  // One key for all tries: whatever became of an earlier one, there is never a second job.
  const headers = { ...api.headers, "Idempotency-Key": randomUUID(), "Repr-Digest": `sha-256=:${digest}:` };
  for (let tries = 1; ; tries += 1) {
    const form = new FormData();
    form.append("file", new Blob([bytes]), "image");
    const { answer, body, reason } = await request(new URL("/api/v1/images", api.url), { method: "POST", headers, body: form }, deadline);
    const said = documentOf(body);
    note({ tries, job_id: said.job_id ?? null, code: said.code ?? reason ?? null });
    if (answer?.status === 202) {
      note({ outcome: "accepted" });
      return { location: answer.headers.get("Location"), toldS: retryAfterS(answer) };
    }
    const again = answer === null || REFUSED.has(answer.status) || said.code === "key_in_use";
    note({ outcome: answer === null ? "unreachable" : again ? "refused" : "rejected" });
    if (!again || tries >= UPLOAD_TRIES_MAX) return null;
    const pauseS = longer(retryAfterS(answer) ?? REFUSED_PAUSE_S); // never earlier than told
    say(`${said.code ?? reason}: again in ${pauseS.toFixed(1)} s`);
    await sleep(pauseS * 1000, undefined, { signal: deadline });
  }
}

async function follow(api, { location, toldS }, deadline, note) {
  const url = new URL(new URL(location, api.url).pathname, api.url); // the token goes to the API's own address only
  let pauseS = longer(toldS ?? POLL_PAUSES_S[0]);
  for (let look = 0, failures = 0; failures < LOOK_FAILURES_MAX; look += 1) {
    await sleep(pauseS * 1000, undefined, { signal: deadline });
    const { answer, body } = await request(url, { headers: api.headers }, deadline);
    const said = documentOf(body);
    if (answer !== null && GONE.has(answer.status)) {
      note({ outcome: "gone", code: said.code ?? null });
      return null;
    }
    failures = answer?.ok ? 0 : failures + 1;
    if (answer?.ok) {
      say(said.status);
      if (FINAL.has(said.status)) {
        note({ outcome: said.status, code: said.error?.code ?? null });
        return { url, job: said };
      }
    }
    const ownS = shorter(POLL_PAUSES_S[Math.min(look, POLL_PAUSES_S.length - 1)]);
    const askedS = retryAfterS(answer);
    pauseS = Math.max(ownS, askedS === null ? 0 : longer(askedS));
    if (answer?.ok) pauseS = Math.min(pauseS, POLL_PAUSES_S.at(-1)); // a hint may be cut short, a refusal may not
  }
  note({ outcome: "unreachable" });
  return null;
}

async function save(api, { url, job }, folder, stem, deadline, note) {
  await mkdir(folder, { recursive: true });
  const saved = [];
  for (const name of Object.keys(job.variants)) {
    if (!/^\w+$/.test(name)) throw new Error(`a result is called ${JSON.stringify(name)}`);
    for (let tries = 1; ; tries += 1) {
      const variant = job.variants[name];
      const { answer, body } = await request(variant.url, {}, deadline); // a link needs no token, and gets none
      if (answer?.ok && createHash("sha256").update(body).digest("hex") === variant.sha256) {
        const target = join(folder, `${stem}.${name}.${SUFFIXES[variant.media_type] ?? "bin"}`);
        await writeFile(`${target}.part`, body);
        await rename(`${target}.part`, target);
        saved.push(target);
        break;
      }
      if (tries >= DOWNLOAD_TRIES_MAX) {
        note({ outcome: "spoiled", code: name });
        return;
      }
      await sleep(longer(REFUSED_PAUSE_S) * 1000, undefined, { signal: deadline });
      const looked = await request(url, { headers: api.headers }, deadline); // links run out; the job gives new ones
      if (looked.answer?.ok) job = documentOf(looked.body);
    }
    note({ saved: [...saved] });
  }
}

async function main() {
  const options = { url: { type: "string", default: "http://127.0.0.1:8080" }, save: { type: "string" } };
  const { values, positionals } = parseArgs({ options, allowPositionals: true });
  const token = process.env.SPILLWAY_TOKEN;
  if (positionals.length !== 1 || !token) {
    say("usage: SPILLWAY_TOKEN=… node client.mjs FILE [--url URL] [--save DIR]");
    return 2;
  }
  const [path] = positionals;
  const api = { url: values.url, headers: { Authorization: `Bearer ${token}` } };
  const deadline = AbortSignal.timeout(DEADLINE_MS);
  const result = { outcome: "unreachable", job_id: null, code: null, tries: 0, saved: [] };
  const note = (changes) => Object.assign(result, changes);
  try {
    const accepted = await upload(api, path, deadline, note);
    const ended = accepted && (await follow(api, accepted, deadline, note));
    if (ended && values.save !== undefined && result.outcome === "ready") {
      await save(api, ended, values.save, basename(path, extname(path)), deadline, note);
    }
  } catch (error) {
    if (!deadline.aborted) throw error;
    note({ outcome: "timed_out" });
  }
  process.stdout.write(`${JSON.stringify(result)}\n`);
  return result.outcome === "ready" ? 0 : 1;
}

process.exitCode = await main();
