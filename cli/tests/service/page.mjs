// The page of the service, driven by a real browser: `node page.mjs PROGRAM SHOTS`. PLAYWRIGHT names the folder that
// playwright-core is installed in, CHROMIUM the browser. Without either it says SKIPPED and ends well.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import assert from "node:assert/strict";

const [program, shots] = process.argv.slice(2);
const browserPath = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const installed = join(process.env.PLAYWRIGHT ?? ".", "node_modules", "playwright-core");
if (!browserPath || !existsSync(browserPath) || !existsSync(installed)) {
  console.log("SKIPPED: the page was not looked at, there is no chromium or no playwright-core");
  process.exit(0);
}
const { chromium } = createRequire(import.meta.url)(installed);
const folder = mkdtempSync(join(tmpdir(), "leasehold-page-"));
const TOKEN = "a-token-for-the-page-0123456789";
writeFileSync(join(folder, "token"), TOKEN);
if (shots) mkdirSync(shots, { recursive: true });
const started = [];

async function service(name, ...flags) {
  const child = spawn(program, ["serve", "--listen", "127.0.0.1:0", "--store", `file://${join(folder, name)}`, ...flags], { stdio: ["ignore", "pipe", "inherit"] });
  started.push(child);
  const first = await new Promise((resolve, reject) => {
    child.stdout.once("data", (data) => resolve(String(data)));
    child.once("exit", () => reject(new Error("the service ended")));
  });
  return first.match(/https?:\/\/\S+/)[0];
}

async function call(base, path, body, headers = {}) {
  const answer = await fetch(base + path, { method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body) });
  return answer.json();
}

function watchFor(page, problems) {
  page.on("console", (message) => { if (message.type() === "error" && !message.text().includes("401")) problems.push(message.text()); });
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("request", (request) => { if (!/^http:\/\/127\.0\.0\.1:|^data:/.test(request.url())) problems.push(`it asked for ${request.url()}`); });
}

// 305 leases of this process and 3 of another one on the same store: each can be found, and none is denied.
async function manyLeases() {
  const many = await service("many");
  const other = await service("many");
  for (let shard = 1; shard <= 300; shard += 1) await call(many, "/v1/acquire", { key: `batch/shard-${shard}`, owner: `worker-${shard % 20}`, ttl_ms: 600000 });
  for (let key = 0; key < 5; key += 1) await call(many, "/v1/acquire", { key: `reports/${key}`, owner: "reporter", ttl_ms: 600000 });
  for (let key = 1; key <= 3; key += 1) await call(other, "/v1/acquire", { key: `zz-outside/${key}`, owner: "elsewhere", ttl_ms: 600000 });
  await call(other, "/v1/acquire", { namespace: "billing", key: "invoices", owner: "billing-2", ttl_ms: 600000 });
  const shown = [];
  for (const [name, width, height, colorScheme] of [["light", 1280, 900, "light"], ["dark", 1280, 900, "dark"], ["phone", 390, 844, "light"], ["phone-dark", 390, 844, "dark"]]) {
    const page = await browser.newPage({ viewport: { width, height }, colorScheme, deviceScaleFactor: 1.5 });
    watchFor(page, problems);
    const shot = async (what) => { if (shots) await page.screenshot({ path: join(shots, `many-${what}-${name}.png`), fullPage: name.startsWith("phone") && what !== "all" }); };
    const line = page.locator("#found-line");
    const says = (text) => line.filter({ hasText: text }).waitFor();
    await page.goto(many);
    await row(page, "batch/shard-1").first().waitFor();
    await shot("first");
    // Later the service knows what was found before.
    if (name === "light") {
      assert.equal(await page.locator("#held").innerText(), "305");
      assert.equal(await page.locator("#held-more").innerText(), "4 more may be held");
      const reached = new Set();
      for (const range of ["1 to 100", "101 to 200", "201 to 300", "301 to 305"]) {
        await page.locator("#range", { hasText: `${range} of 305` }).waitFor();
        for (const key of await page.locator("#leases .row:not(.gone) .key").allInnerTexts()) reached.add(key);
        if (range !== "301 to 305") await page.locator("#after").click();
      }
      assert.equal(reached.size, 305);
      assert.ok(await page.locator("#after").isDisabled());
    }

    // One that is not on the first page, then one that only the other process knows, then one of another namespace.
    await page.fill("#filter", "shard-300");
    await row(page, "batch/shard-300").waitFor();
    await says("Nobody holds “shard-300” itself. 0 keys of the store begin with “shard-300”");
    await page.fill("#filter", "zz-outside/2");
    await row(page, "zz-outside/2").waitFor();
    assert.match(await row(page, "zz-outside/2").locator(".owner").innerText(), /elsewhere/);
    await says("1 key of the store begins with “zz-outside/2”: 1 is held.");
    await shot("found");
    await page.fill("#filter", "invoi");
    await row(page, "invoices").waitFor();

    // A word from the middle of a key: the store is looked through on demand.
    if (name === "light") {
      await call(other, "/v1/acquire", { key: "aa/in-the-middle-of", owner: "elsewhere", ttl_ms: 600000 });
      await page.fill("#filter", "middle");
      await says("0 keys of the store begin with “middle”");
      await page.locator("#no-leases", { hasText: "knows of no lease with “middle”" }).waitFor();
      await page.locator("#all").click();
      await row(page, "in-the-middle-of").waitFor();
    }
    await page.fill("#filter", "not there");
    await says("Nobody holds “not there” itself. 0 keys of the store begin with “not there”: 0 are held.");
    await shot("nothing");
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= width, `${name}: ${wide} pixels on a screen of ${width}`);
    await page.fill("#filter", "");
    await page.locator("#found").waitFor({ state: "hidden" });
    await page.close();
    shown.push(name);
  }
  console.log(`of 305 leases and those of another process each was found: ${shown.join(", ")}`);
}

const seconds = (text) => text.endsWith(" s") && !text.includes("min") ? parseFloat(text) : 60 * parseFloat(text);
const row = (page, key) => page.locator("#leases .row", { hasText: key });
const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox"] });
const problems = [];
try {
  const open = await service("open", "--idle-grace", "6s", "--tick", "200ms");
  const page = await browser.newPage();
  watchFor(page, problems);
  await page.goto(open);
  await page.getByText("This process knows of no lease that is held.").waitFor();
  const state = page.locator("#sweep-state");
  const before = await state.innerText();

  // A lease appears, counts down, and vanishes.
  await call(open, "/v1/acquire", { key: "orders/<b>42</b>", owner: "worker-7", ttl_ms: 6000, note: "a & b" });
  await row(page, "orders/<b>42</b>").waitFor();
  assert.match(await row(page, "orders/").locator(".owner").innerText(), /worker-7/);
  const count = row(page, "orders/").locator(".count");
  const early = seconds(await count.innerText());
  await page.waitForFunction(([before]) => parseFloat(document.querySelector("#leases .count").textContent) < before - 1, [early]);
  await page.locator("#events .tag.granted").first().waitFor();
  await row(page, "orders/").waitFor({ state: "detached" });
  await page.locator("#events .tag.expired").first().waitFor();
  console.log(`a lease appeared, counted down from ${early} s, and vanished`);

  // The sweeper's state changes by itself when nobody asks for anything, and by hand.
  await page.waitForFunction(([before]) => ![before].includes(document.getElementById("sweep-state").textContent), [before], { timeout: 30000 });
  await page.locator("#run-list .tag.complete").first().waitFor();
  const runs = await page.locator("#runs rect").count();
  await page.locator("#sweep").click();
  await page.waitForFunction(([runs]) => document.querySelectorAll("#runs rect").length > runs, [runs]);
  console.log(`the sweeper went from "${before}" to "${await state.innerText()}", and ran by hand`);
  await page.close();

  await manyLeases();

  // With a token: asked for, refused, accepted, forgotten.
  const locked = await service("locked", "--token-file", join(folder, "token"));
  const guarded = await browser.newPage();
  watchFor(guarded, problems);
  await guarded.goto(locked);
  await guarded.locator("#login").waitFor();
  assert.equal(await guarded.locator("#main").isVisible(), false);
  await guarded.fill("#token", "not the right one at all");
  await guarded.getByRole("button", { name: "Open" }).click();
  await guarded.locator("#refused").waitFor();
  await guarded.fill("#token", TOKEN);
  await guarded.keyboard.press("Enter");
  await guarded.locator("#main").waitFor();
  await call(locked, "/v1/acquire", { key: "secret", owner: "somebody" }, { authorization: `Bearer ${TOKEN}` });
  await row(guarded, "secret").waitFor();
  await guarded.locator("#leave").click();
  await guarded.locator("#login").waitFor();
  assert.equal(await guarded.locator("#main").isVisible(), false);
  await guarded.close();
  console.log("the token was asked for, refused, accepted and forgotten");

  // As people see it: light, dark, and on a phone, where nothing is wider than the screen.
  for (const [key, owner, ttl_ms, note] of [
    ["migrations/2026-11", "deploy-bot", 900000, "step 3 of 7"], ["reports/daily", "reporter@node-3", 600000, "building the report of 15 November"],
    ["scheduler", "node-1", 45000, "10.0.4.17:8080"], ["shards/00", "indexer-a", 60000], ["shards/01", "indexer-b", 60000],
    ["shards/02", "indexer-a", 60000], ["cron/cleanup", "cron-5f9", 120000], ["orders/42", "worker-7", 30000],
  ]) await call(open, "/v1/acquire", { key, owner, ttl_ms, ...(note && { note }) });
  await call(open, "/v1/acquire", { namespace: "billing", key: "invoices/2026-11", owner: "billing-2", ttl_ms: 300000 });
  for (const [name, width, height, colorScheme] of [["light", 1280, 900, "light"], ["dark", 1280, 900, "dark"], ["phone", 390, 844, "light"], ["phone-dark", 390, 844, "dark"]]) {
    const seen = await browser.newPage({ viewport: { width, height }, colorScheme, deviceScaleFactor: 1.5 });
    watchFor(seen, problems);
    await seen.goto(open);
    await row(seen, "scheduler").waitFor();
    const wide = await seen.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= width, `${name}: ${wide} pixels on a screen of ${width}`);
    const paper = await seen.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(parseInt(paper.match(/\d+/)[0], 10) > 128, colorScheme === "light", `${name}: ${paper}`);
    if (shots) await seen.screenshot({ path: join(shots, `page-${name}.png`), fullPage: name.startsWith("phone") });
    await seen.close();
  }
  console.log("light, dark and phone fit");
  assert.deepEqual(problems, []);
} finally {
  await browser.close();
  for (const child of started) child.kill("SIGTERM");
  rmSync(folder, { recursive: true, force: true });
}
