// @ts-check
// The page of `karpenter console`. It has no build step: `tsc --checkJs --strict` checks the types that stand in comments.
// Everything that comes from the cluster becomes text nodes, never markup.
"use strict";

/** @typedef {{name: string, pool: string, type: string, zone: string, capacityType: string, state: string, why: string,
 *   heldBy: string[], price: number | null, cpu: number, memory: number, cpuMillis: number, pods: number, ready: boolean}} Node_ */
/** @typedef {{reason: string, allowed: number | null, remaining: number | null, opensAt: string | null}} Budget */
/** @typedef {{name: string, nodes: number, price: number, cpu: number, memory: number, drifted: number, freeze: string,
 *   ready: boolean, budgets: Budget[]}} Pool */
/** @typedef {{at: string, kind: string, text: string, reason: string, nodes: string[], replaces: string[], saving: number | null}} Decision */
/** @typedef {{now: string, title: string, fault: string, price: number, managedPrice: number, bound: number | null,
 *   unpricedNodes: number, fill: Record<string, number>,
 *   pods: {total: number, pending: number, running: number, bound: number},
 *   nodes: Node_[], pending: {pod: string, since: string | null, reason: string}[], decisions: Decision[], pools: Pool[],
 *   spending: Record<string, {name: string, price: number, count: number}[]>}} View */
/** @typedef {string | number | null | HTMLElement} Cell */

const HOURS_PER_MONTH = 730;
/** Pixels of height of a node with one core, and of the highest box. */
const PIXELS_PER_CORE = 6;
const HIGHEST = 160;

/** @param {string} id @returns {HTMLElement} */
function part(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no ${id}`);
  return found;
}

/** @param {string} tag @param {Cell} [content] @param {string} [style] @returns {HTMLElement} */
function element(tag, content, style) {
  const made = document.createElement(tag);
  if (content instanceof HTMLElement) made.append(content);
  else if (content !== undefined && content !== null) made.textContent = String(content);
  if (style) made.className = style;
  return made;
}

/** @param {number | null} usd @returns {string} */
const dollars = (usd) => (usd === null ? "-" : `$${usd.toFixed(4)}`);
/** @param {number} share @returns {string} */
const percent = (share) => `${Math.round(share * 100)} %`;

/** @param {string[]} titles @param {Cell[][]} rows @param {string} empty @returns {HTMLElement} */
function table(titles, rows, empty) {
  if (rows.length === 0) return element("p", empty, "hint");
  const numeric = titles.map((_, at) => rows.every((row) => /^[-$0-9. %]+$/.test(String(row[at]))));
  const made = element("table");
  const head = element("tr");
  titles.forEach((title, at) => {
    const cell = element("th", title, numeric[at] ? "number" : "");
    cell.setAttribute("scope", "col");
    head.append(cell);
  });
  const body = element("tbody");
  for (const row of rows) {
    const line = element("tr");
    row.forEach((value, at) => line.append(element("td", value, numeric[at] ? "number" : "")));
    body.append(line);
  }
  made.append(element("thead", head), body);
  return made;
}

/** @param {number} share @param {string} label @returns {HTMLElement} */
function meter(share, label) {
  const made = /** @type {HTMLMeterElement} */ (element("meter"));
  made.max = 1;
  made.value = Math.min(1, share);
  made.setAttribute("aria-label", `${label} ${percent(share)}`);
  return made;
}

/** @param {View} view */
function drawNumbers(view) {
  /** @type {[string, string, number | null][]} */
  const numbers = [
    ["Active nodes", String(view.nodes.length), null],
    ["Pending pods", `${view.pods.pending} of ${view.pods.total}`, null],
    ["CPU requested", percent(view.fill.cpu ?? 0), view.fill.cpu ?? 0],
    ["Memory requested", percent(view.fill.memory ?? 0), view.fill.memory ?? 0],
    ["Price per hour", `$${view.price.toFixed(3)}`, null],
    ["Price per month", `$${(view.price * HOURS_PER_MONTH).toFixed(0)}`, null],
  ];
  if (view.bound !== null) numbers.push(["Price against bound", `${(view.managedPrice / view.bound).toFixed(2)} x`, null]);
  if (view.unpricedNodes) numbers.push(["Nodes without price", String(view.unpricedNodes), null]);
  part("numbers").replaceChildren(
    ...numbers.map(([title, text, share]) => {
      const group = element("div");
      group.append(element("dt", title), element("dd", text));
      if (share !== null) group.append(element("dd", meter(share, title)));
      return group;
    }),
  );
}

/** @param {Node_} node @returns {HTMLElement} */
function box(node) {
  const made = /** @type {HTMLButtonElement} */ (element("button"));
  made.type = "button";
  made.className = ["disrupting", "terminating"].includes(node.state) ? "node going" : "node";
  const height = Math.max(16, Math.min(HIGHEST, (node.cpuMillis / 1000) * PIXELS_PER_CORE));
  made.style.height = `${height}px`;
  const text = `${node.name}: ${node.type || "type unknown"}, ${node.state}, CPU ${percent(node.cpu)}, memory ${percent(node.memory)}, ${dollars(node.price)} per hour`;
  made.title = text;
  made.setAttribute("aria-label", text);
  made.dataset.node = node.name;
  const filled = element("span");
  filled.style.height = `${Math.min(1, node.cpu) * 100}%`;
  made.append(filled);
  made.addEventListener("click", () => void explainNode(node.name));
  return made;
}

/** @param {View} view */
function drawMap(view) {
  /** @type {Map<string, Node_[]>} */
  const byPool = new Map();
  for (const node of view.nodes) {
    const name = node.pool || "(no NodePool)";
    byPool.set(name, [...(byPool.get(name) ?? []), node]);
  }
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.node : undefined;
  const groups = [...byPool].map(([name, nodes]) => {
    const group = element("div", undefined, "pool");
    group.append(element("h3", `${name} (${nodes.length})`), ...nodes.map(box));
    return group;
  });
  part("map").replaceChildren(...(groups.length ? groups : [element("p", "no nodes", "hint")]));
  if (focused !== undefined) {
    const again = [...part("map").querySelectorAll("button")].find((button) => button.dataset.node === focused);
    again?.focus();
  }
}

/** @param {string} name */
async function explainNode(name) {
  const section = part("explanation");
  section.hidden = false;
  part("explanation-text").textContent = "computing ...";
  section.focus();
  history.replaceState(null, "", `#node/${encodeURIComponent(name)}`);
  const answer = await fetch(`api/explanation?subject=node/${encodeURIComponent(name)}`);
  part("explanation-text").textContent = await answer.text();
}

/** @param {Budget} budget @returns {string} */
function budgetText(budget) {
  if (budget.allowed === null) return "all";
  const opens = budget.remaining === 0 && budget.opensAt ? `, more at ${budget.opensAt}` : "";
  return `${budget.remaining} of ${budget.allowed}${opens}`;
}

/** @param {View} view */
function drawTables(view) {
  part("pending").replaceChildren(
    table(["pod", "since", "reason"], view.pending.map((pod) => [pod.pod, pod.since, pod.reason]), "no pod waits"),
  );
  part("decisions").replaceChildren(
    table(
      ["at", "decision", "for", "saves $/h", "nodes", "in place of"],
      view.decisions.map((row) => [row.at, row.text, row.reason, row.saving === null ? "-" : row.saving.toFixed(2), row.nodes.join(", "), row.replaces.join(", ")]),
      "nothing was decided in the time that the API server keeps events for",
    ),
  );
  const types = view.spending["instance type"] ?? [];
  part("types").replaceChildren(table(["type", "nodes", "$/h"], types.map((row) => [row.name, row.count, dollars(row.price)]), "no nodes with a price"));
  const reasons = view.pools[0]?.budgets.map((budget) => `may go: ${budget.reason.toLowerCase()}`) ?? [];
  part("pools").replaceChildren(
    table(
      ["pool", "nodes", "$/h", "CPU", "memory", ...reasons, "drifted", "state"],
      view.pools.map((pool) => [pool.name, pool.nodes, dollars(pool.price), percent(pool.cpu), percent(pool.memory), ...pool.budgets.map(budgetText), pool.drifted, pool.freeze ? `frozen: ${pool.freeze}` : pool.ready ? "ready" : "not ready"]),
      "no NodePools",
    ),
  );
  const rows = Object.entries(view.spending).flatMap(([by, all]) => all.map((row) => [by, row.name, dollars(row.price), `$${(row.price * HOURS_PER_MONTH).toFixed(0)}`]));
  part("spending").replaceChildren(table(["by", "name", "$/h", "$/month"], rows, "no nodes with a price"));
}

/** @param {View} view */
function draw(view) {
  part("title").textContent = `${view.title}, as of ${view.now}`;
  part("fault").textContent = view.fault;
  drawNumbers(view);
  drawMap(view);
  drawTables(view);
}

const updates = new EventSource("api/stream");
updates.addEventListener("message", (/** @type {MessageEvent<string>} */ message) => draw(JSON.parse(message.data)));
updates.addEventListener("error", () => {
  part("fault").textContent = "the connection to karpenter console is lost; is it still running?";
});
const shared = location.hash.match(/^#node\/(.+)$/);
if (shared?.[1]) void explainNode(decodeURIComponent(shared[1]));
