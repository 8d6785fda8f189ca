"use strict";
// The page of the lock service. It asks for one document every two seconds, and counts down by itself in between.

const $ = (id) => document.getElementById(id);
const KINDS = [["get", "reads"], ["put", "writes"], ["list", "listings"], ["delete", "deletes"]];
const ENDED = {
  complete: "looked at everything", ops: "as many as a run may", time: "as long as a run may",
  activity: "made way for traffic", stop: "stopped", error: "the store failed",
};
const EVERY = 2000;
const PAGE = 100; // As many leases as the service puts into a document.
let latest = null; // The last document.
let ahead = 0; // How far the service's clock is ahead of ours.
let timer = 0;
let asked = 0; // How often the service was asked: an answer that another one has overtaken is thrown away.
let skip = 0; // How many leases are on the pages before.
let search = null; // What is looked for in the store.

const now = () => Date.now() + ahead;
const keyText = (item) => item.key ?? `base64:${item.key_b64}`;
const idOf = (item) => `${item.namespace}\n${item.key ?? ""}\n${item.key_b64 ?? ""}`;
const number = (value) => value.toLocaleString("en-US");
const some = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;
const wanted = () => $("filter").value.trim();

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function shape(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function span(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 90) return `${Math.floor(s)} s`;
  if (s < 5400) return `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} days`;
}

// Without parts that are nothing: for settings, which are round.
function round(ms) {
  if (ms % 3600000 === 0) return `${ms / 3600000} h`;
  if (ms % 60000 === 0) return `${ms / 60000} min`;
  if (ms % 1000 === 0) return `${ms / 1000} s`;
  return span(ms);
}

function ago(ms) {
  const s = Math.max(0, now() - ms) / 1000;
  if (s < 2) return "now";
  if (s < 60) return `${Math.floor(s)} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  return `${Math.floor(s / 3600)} h ago`;
}

const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
const time = (ms) => new Date(ms).toISOString().slice(11, 19);
const hour = (text) => clock(Date.UTC(+text.slice(0, 4), +text.slice(4, 6) - 1, +text.slice(6, 8), +text.slice(8, 10) + 1));

// The token lives as long as the tab.
const token = {
  get: () => sessionStorage.getItem("leasehold-token"),
  set: (value) => value === null ? sessionStorage.removeItem("leasehold-token") : sessionStorage.setItem("leasehold-token", value),
};

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (options.body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  const body = await response.json();
  if (!response.ok) throw Object.assign(new Error(body.detail), { code: body.code });
  return body;
}

async function refresh() {
  clearTimeout(timer);
  const turn = ++asked;
  try {
    const sent = Date.now();
    const answer = await call(`/v1/overview?find=${encodeURIComponent(wanted())}&skip=${skip}`);
    if (turn !== asked) return;
    latest = answer;
    ahead = latest.now_ms - (sent + Date.now()) / 2;
    $("login").hidden = true;
    $("main").hidden = false;
    $("leave").hidden = !token.get();
    show(latest);
  } catch (error) {
    if (turn !== asked) return;
    if (error.code === "unauthorized") return ask();
    health("bad", error.code ? error.message : "no answer");
  }
  if (!document.hidden) timer = setTimeout(refresh, EVERY);
}

function ask() {
  $("refused").hidden = !token.get();
  token.set(null);
  latest = null;
  look("");
  $("main").hidden = true;
  $("leave").hidden = true;
  $("login").hidden = false;
  $("place").textContent = location.host;
  health("warn", "locked");
  $("token").focus();
}

function health(kind, text) {
  $("health").className = `pill ${kind}`;
  $("health").textContent = text;
}

// Keeps the elements of a list by the names of its items, so that what stays is not drawn anew.
function keep(list, items, name, create, update) {
  const there = new Map([...list.children].filter((row) => !row.classList.contains("gone")).map((row) => [row.dataset.name, row]));
  let last = null;
  for (const item of items) {
    const id = name(item);
    let row = there.get(id);
    there.delete(id);
    if (!row) {
      row = create(item);
      row.dataset.name = id;
    }
    update(row, item);
    if (last ? last.nextElementSibling !== row : list.firstElementChild !== row) {
      last ? last.after(row) : list.prepend(row);
    }
    last = row;
  }
  for (const row of there.values()) {
    row.classList.add("gone");
    setTimeout(() => row.remove(), 350);
  }
}

function keyElement(item) {
  const element = make("div", "key");
  if (item.namespace !== "default") element.append(make("span", "space", `${item.namespace} / `));
  element.append(keyText(item));
  return element;
}

function createLease(item) {
  const row = make("li", "row new");
  const key = make("div");
  key.append(keyElement(item), make("div", "note"));
  const left = make("div", "left");
  const bar = make("div", "bar");
  bar.append(make("i"));
  left.append(make("span", "count"), bar);
  row.append(key, make("div", "owner"), make("div", "fence"), left);
  return row;
}

function updateLease(row, item) {
  const { holder } = item;
  row.item = item;
  row.querySelector(".note").textContent = holder.note ?? "";
  row.querySelector(".note").hidden = !holder.note;
  row.querySelector(".owner").textContent = holder.owner || "no name";
  row.querySelector(".owner").title = holder.owner;
  row.querySelector(".owner").classList.toggle("nobody", !holder.owner);
  row.querySelector(".fence").textContent = holder.fence;
  row.title = `granted ${new Date(holder.granted_ms).toLocaleString()}, for ${span(holder.ttl_ms)} at a time`;
  row.dataset.expires = holder.expires_ms;
  row.dataset.ttl = holder.ttl_ms;
}

function showLeases(data) {
  keep($("leases"), data.held, (item) => `${idOf(item)}\n${item.holder.fence}`, createLease, updateLease);
  if (skip > 0 && data.held.length === 0) {
    skip = Math.max(0, skip - PAGE);
    return refresh();
  }
  $("no-leases").hidden = data.held.length > 0;
  $("no-leases").textContent = wanted() ? `This process knows of no lease with “${wanted()}” in its key or owner.` : "This process knows of no lease that is held.";
  $("pager").hidden = data.held_found <= data.held.length;
  $("range").textContent = `${number(skip + 1)} to ${number(skip + data.held.length)} of ${number(data.held_found)}`;
  $("before").disabled = skip === 0;
  $("after").disabled = skip + data.held.length >= data.held_found;
  showFiled(data.filed);
}

// Keys that the index has and this process does not know to be held.
function showFiled(filed) {
  const text = wanted().toLowerCase();
  const parts = [some(filed.unseen, "other key may be held", "other keys may be held")];
  if (filed.seen_free) parts.push(`${some(filed.seen_free, "was", "were")} free when last seen here`);
  if (filed.unnamed) parts.push(some(filed.unnamed, "has a long name", "have long names"));
  if (filed.more) parts.push("and the index goes on");
  $("filed").hidden = filed.unseen + filed.seen_free + filed.unnamed === 0 && !filed.more && !filed.problem;
  $("filed-title").textContent = filed.problem ? `The index could not be read: ${filed.problem}` : parts.join(", ");
  const fits = (item) => `${item.namespace} ${keyText(item)}`.toLowerCase().includes(text);
  keep($("filed-keys"), filed.keys.filter(fits), idOf, (item) => {
    const row = make("li", "row");
    const button = make("button", "link", "look");
    button.type = "button";
    button.addEventListener("click", () => lookAt(item, row, button));
    row.append(keyElement(item), make("span", "ago"), button);
    return row;
  }, (row, item) => {
    if (!row.dataset.looked) row.querySelector(".ago").textContent = item.seen_free ? "free when last seen" : `until ${hour(item.hour)} at the latest`;
  });
}

function peek(item) {
  const key = item.key !== undefined ? encodeURIComponent(item.key)
    : [...atob(item.key_b64)].map((byte) => `%${byte.charCodeAt(0).toString(16).padStart(2, "0")}`).join("");
  return call(`/v1/lease?peek=true&namespace=${item.namespace}&key=${key}`);
}

async function lookAt(item, row, button) {
  button.disabled = true;
  try {
    const status = await peek(item);
    if (status.holder) return refresh();
    row.querySelector(".ago").textContent = status.last_fence ? `free, last fence ${status.last_fence}` : "free";
  } catch (error) {
    row.querySelector(".ago").textContent = error.message;
  }
  row.dataset.looked = "yes";
  button.disabled = false;
}

// Looks in the store for what this process may not know: the key of that name, and those that begin with it; or, on demand,
// all keys. Whatever is read is known to the service from then on, and stands in the list.
function look(text, all = false) {
  const places = new Set(["default", ...latest?.namespaces ?? []]);
  search = text && { text, all, free: 0, looked: 0, held: 0, unreadable: 0, exact: all ? [] : [...places], places: [...places].map((namespace) => ({ namespace })) };
  if (search) lookFurther();
  showFound();
}

async function lookFurther() {
  const mine = search;
  mine.busy = true;
  mine.problem = null;
  showFound();
  try {
    while (mine === search && mine.exact.length > 0) {
      const status = await peek({ namespace: mine.exact[0], key: mine.text });
      if (!status.holder) mine.free += 1;
      mine.exact.shift();
    }
    for (let pages = 0; mine === search && mine.places.length > 0 && pages < 10; pages += 1) {
      const [place] = mine.places;
      const query = new URLSearchParams({ namespace: place.namespace, prefix: mine.all ? "" : mine.text, ...(place.after && { after: place.after }) });
      const page = await call(`/v1/leases?${query}`);
      const fits = (item) => `${keyText(item)}\n${item.holder?.owner ?? ""}`.toLowerCase().includes(mine.text.toLowerCase());
      mine.looked += page.keys.length;
      mine.held += page.keys.filter((item) => item.holder && (!mine.all || fits(item))).length;
      mine.unreadable += page.unreadable.length;
      if (page.next) place.after = page.next;
      else mine.places.shift();
    }
  } catch (error) {
    mine.problem = error.message;
  }
  mine.busy = false;
  if (mine !== search) return;
  showFound();
  refresh();
}

function showFound() {
  $("found").hidden = !search;
  if (!search) return;
  const { text, all, free, looked, held, unreadable, busy, problem, places } = search;
  const parts = [];
  if (!all && free > 0 && free >= new Set(["default", ...latest?.namespaces ?? []]).size) parts.push(`Nobody holds “${text}” itself.`);
  if (busy) parts.push("Asking the store…");
  else if (all) parts.push(`${some(looked, "key", "keys")} of the store looked at: ${some(held, "is held and fits", "are held and fit")}.`);
  else parts.push(`${some(looked, "key of the store begins", "keys of the store begin")} with “${text}”: ${some(held, "is", "are")} held.`);
  if (!busy && places.length > 0 && !problem) parts.push("There are more.");
  if (unreadable) parts.push(`${some(unreadable, "record", "records")} could not be read.`);
  if (problem) parts.push(`The store could not be asked: ${problem}`);
  $("found-line").textContent = parts.join(" ");
  $("found-line").classList.toggle("bad", Boolean(problem));
  $("further").hidden = busy || places.length === 0;
  $("all").hidden = busy || all;
}

// A lease of another process may have been renewed by the time that it ends: while somebody looks for it, it is read again.
async function again(row) {
  row.dataset.asked = row.dataset.expires;
  try { await peek(row.item); } catch { return; } // The next look says what is wrong.
  refresh();
}

function showEvents(data) {
  keep($("events"), data.events.slice(0, 60), (event) => `${event.what} ${event.fence} ${idOf(event)}`, (event) => {
    const row = make("li");
    const what = make("span", "what");
    what.append(Object.assign(keyElement(event), { className: "key" }));
    what.firstElementChild.style.display = "inline";
    what.append(event.owner ? ` ${event.owner}` : "");
    what.title = `${keyText(event)}, fence ${event.fence}, ${new Date(event.at_ms).toLocaleString()}`;
    row.append(make("span", `tag ${event.what}`, event.what), what, make("span", "ago"));
    return row;
  }, (row, event) => { row.dataset.at = event.at_ms; });
  $("no-events").hidden = data.events.length > 0;
  const c = data.counts;
  $("counts").textContent = `${number(c.granted)} granted, ${number(c.renewed)} renewed, ${number(c.lost)} lost`;
}

function showRequests(data) {
  const svg = $("requests");
  const samples = data.samples;
  // Two minutes at the least, and as much more as there is.
  const [width, height, count] = [480, 120, Math.max(24, samples.length)];
  const total = (sample) => KINDS.reduce((sum, [kind]) => sum + sample[kind], 0);
  const most = Math.max(10, ...samples.map(total));
  const step = width / count;
  svg.replaceChildren();
  for (const part of [0, .5, 1]) svg.append(shape("line", { x1: 0, x2: width, y1: height * part, y2: height * part }));
  samples.forEach((sample, index) => {
    let y = height;
    const x = (count - samples.length + index) * step;
    for (const [kind] of KINDS) {
      const size = sample[kind] / most * height;
      if (size <= 0) continue;
      y -= size;
      svg.append(shape("rect", { x: x + .5, y, width: step - 1, height: size, class: kind }));
    }
  });
  const seconds = data.sample_every_ms / 1000;
  const peak = Math.max(0, ...samples.map(total)) / seconds;
  $("peak").textContent = `${round(Math.ceil(count * seconds / 60) * 60000)}, up to ${peak < 10 ? peak.toFixed(1) : number(Math.round(peak))} a second`;
  $("legend").replaceChildren(...KINDS.map(([kind, name]) => {
    const item = make("li");
    item.append(make("i", kind), `${name} `, make("b", "", number(data.store[kind])));
    return item;
  }));
}

function showSweeper(data) {
  const sweeper = data.sweeper;
  const rests = sweeper.rests_until_ms && sweeper.rests_until_ms > now();
  $("sweep-state").textContent = sweeper.running ? "sweeping" : rests ? "resting" : sweeper.idle_ms >= sweeper.idle_grace_ms ? "due" : "standing by";
  $("sweep-line").textContent = rests ? `Everything is swept. The next hour can be looked at from ${clock(sweeper.rests_until_ms)} on.`
    : `It begins when nobody has asked for anything for ${round(sweeper.idle_grace_ms)}.`;
  $("sweep").disabled = sweeper.running;
  const svg = $("runs");
  const runs = sweeper.runs.slice(0, 40).reverse();
  const most = Math.max(5, ...runs.map((run) => run.report.entries_seen));
  svg.replaceChildren(shape("line", { x1: 0, x2: 480, y1: 44, y2: 44 }));
  runs.forEach((run, index) => {
    // A run that had nothing to look at is still a run.
    const size = 5 + run.report.entries_seen / most * 37;
    const bar = shape("rect", { x: (40 - runs.length + index) * 12 + 1, y: 44 - size, width: 10, height: size, rx: 2, class: run.report.stopped_by ?? "error" });
    bar.append(shape("title", {}));
    bar.firstChild.textContent = `${clock(run.ended_ms)}: ${run.report.entries_seen} entries, ${ENDED[run.report.stopped_by] ?? ""}`;
    svg.append(bar);
  });
  svg.toggleAttribute("hidden", runs.length === 0);
  keep($("run-list"), sweeper.runs.slice(0, 5), (run) => String(run.ended_ms), (run) => {
    const row = make("li");
    const report = run.report;
    const parts = [`${number(report.entries_seen)} looked at`];
    for (const [kind, swept] of Object.entries(report.kinds)) {
      if (swept.cleared) parts.push(`${number(swept.cleared)} ${kind} cleared`);
      if (swept.deleted) parts.push(`${number(swept.deleted)} ${kind} deleted`);
    }
    if (report.entries_deleted) parts.push(`${number(report.entries_deleted)} entries deleted`);
    if (report.failures) parts.push(`${number(report.failures)} failed`);
    const what = make("span", "what", parts.join(", "));
    what.title = `${ENDED[report.stopped_by] ?? ""}; ${report.requests} requests in ${span(report.duration_ms)}${run.by_hand ? "; by hand" : ""}${report.last_error ? `; ${report.last_error}` : ""}`;
    row.append(make("span", `tag ${report.stopped_by}`, report.stopped_by ?? "error"), what, make("span", "ago"));
    return row;
  }, (row, run) => { row.dataset.at = run.ended_ms; });
  $("no-runs").hidden = runs.length > 0;
}

function showStore(data) {
  const { store, counts } = data;
  $("place").textContent = store.place;
  $("skew").textContent = store.skew_ms === null ? "not known" : `${number(store.skew_ms)} ms`;
  const wrong = store.wrong_clock;
  $("skew").classList.toggle("bad", Boolean(wrong));
  $("skew-more").textContent = !store.clock_trusted ? "apart: nothing is granted until that is mended"
    : wrong ? `apart: ${time(wrong.ours_ms)} here, ${time(wrong.theirs_ms)} in the store; ${number(store.skew_allowed_ms)} ms are allowed`
    : `apart, ${number(store.skew_allowed_ms)} ms are allowed`;
  $("skew-more").title = wrong?.what ?? "";
  const facts = [
    ["Failed requests", number(store.failed), store.failed > 0], ["Throttled", number(store.throttled), store.throttled > 0],
    ["Writes in doubt", number(counts.doubts)], ["Found held", number(counts.held)], ["Given back", number(counts.released)],
    ["Ended and cleared", number(counts.cleared)], ["Decisions made", number(counts.decisions)],
    ["Longest lease", round(store.max_ttl_ms)], ["Up for", span(data.up_ms)],
  ];
  $("facts").replaceChildren(...facts.flatMap(([name, value, bad]) => [make("dt", "", name), make("dd", bad ? "bad" : "", value)]));
  $("version").textContent = `leasehold ${data.version}`;
  if (data.draining) health("warn", "going down");
  else if (wrong || !store.clock_trusted) health("bad", "wrong clock");
  else if (data.filed.problem) health("warn", "store is troubled");
  else health("", "all well");
}

function show(data) {
  $("held").textContent = number(data.held_total);
  const { unseen, unnamed, more } = data.filed;
  const others = unseen + unnamed;
  $("held-more").textContent = others ? `${number(others)}${more ? "+" : ""} more may be held` : more ? "others may be held as well" : "that this process knows of";
  $("waiting").textContent = number(data.waiting);
  $("waiting-more").textContent = `of ${number(data.waiting_limit)} places`;
  showLeases(data);
  showEvents(data);
  showRequests(data);
  showSweeper(data);
  showStore(data);
  tick();
}

// Four times a second: what time alone changes.
function tick() {
  if (!latest) return;
  for (const row of $("leases").children) {
    const left = row.dataset.expires - now();
    row.querySelector(".count").textContent = left > 0 ? span(left) : "ended";
    row.querySelector(".bar i").style.width = `${Math.max(0, Math.min(100, left / row.dataset.ttl * 100))}%`;
    row.classList.toggle("soon", left > 0 && left < row.dataset.ttl / 4);
    row.classList.toggle("over", left <= 0);
    if (search && left <= 0 && row.dataset.asked !== row.dataset.expires && !row.classList.contains("gone")) again(row);
  }
  for (const row of document.querySelectorAll(".events li")) row.lastElementChild.textContent = ago(+row.dataset.at);
  const idle = latest.sweeper.idle_ms + now() - latest.now_ms;
  const rests = latest.sweeper.rests_until_ms > now();
  $("sweep-more").textContent = `idle for ${span(idle)}, ${rests ? `rests until ${clock(latest.sweeper.rests_until_ms)}` : `begins after ${round(latest.sweeper.idle_grace_ms)}`}`;
  $("idle-bar").style.width = `${Math.min(100, idle / latest.sweeper.idle_grace_ms * 100)}%`;
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set($("token").value.trim());
  $("token").value = "";
  refresh();
});
$("leave").addEventListener("click", () => { token.set(null); refresh(); });
let typed = 0;
$("filter").addEventListener("input", () => {
  skip = 0;
  look("");
  refresh();
  clearTimeout(typed);
  // One who types on has not asked yet.
  typed = setTimeout(() => look(wanted()), 400);
});
$("further").addEventListener("click", lookFurther);
$("all").addEventListener("click", () => look(search.text, true));
$("before").addEventListener("click", () => { skip = Math.max(0, skip - PAGE); refresh(); });
$("after").addEventListener("click", () => { skip += PAGE; refresh(); });
$("sweep").addEventListener("click", async () => {
  $("sweep").disabled = true;
  $("sweep-state").textContent = "sweeping";
  try { await call("/v1/sweep", { method: "POST", body: "{}" }); } catch (error) { $("sweep-line").textContent = error.message; }
  refresh();
});
const themes = ["auto", "light", "dark"];
function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  $("theme").textContent = name[0].toUpperCase() + name.slice(1);
  localStorage.setItem("leasehold-theme", name);
}
theme(themes.includes(localStorage.getItem("leasehold-theme")) ? localStorage.getItem("leasehold-theme") : "auto");
$("theme").addEventListener("click", () => theme(themes[(themes.indexOf(localStorage.getItem("leasehold-theme")) + 1) % 3]));
document.addEventListener("visibilitychange", () => document.hidden ? clearTimeout(timer) : refresh());
setInterval(tick, 250);
refresh();
