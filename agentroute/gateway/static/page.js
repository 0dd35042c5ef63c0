"use strict";
// Everything that is shown is set as text: nothing that a server or a caller said is ever read as HTML.
const EVERY_MS = 2000;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
let key = sessionStorage.getItem("agentroute-key") || "";

function make(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function draw(parent, tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

const count = (value) => (value === null ? "?" : String(value));

function time(ms) {
  if (ms === null) return "unknown";
  if (ms < 1) return `${(ms * 1000).toFixed(0)} us`;
  return ms < 1000 ? `${ms.toPrecision(3)} ms` : `${(ms / 1000).toPrecision(3)} s`;
}

function bar(label, share, text) {
  const line = make("p", `${label} `);
  if (share === null) {
    line.append("unknown");
    return line;
  }
  const meter = make("meter");
  Object.assign(meter, { min: 0, max: 1, low: 0.7, high: 0.9, optimum: 0 });
  meter.value = share;
  line.append(meter, ` ${text || `${(100 * share).toFixed(0)} %`}`);
  return line;
}

function endpoint(one) {
  const shown = make("div", undefined, "endpoint");
  const state = one.up === true ? "up" : one.up === false ? "down" : "not known yet";
  const head = make("p");
  head.append(make("span", state, one.up ? "up" : "down"));
  if (one.url) head.append(` ${one.url}`);
  if (one.trouble) head.append(`, ${one.trouble}`);
  if (one.breaker !== "closed") head.append(`, breaker ${one.breaker}`);
  shown.append(head, make("p", `running ${count(one.running)}, waiting ${count(one.waiting)}`));
  shown.append(bar("KV in use", one.kv_used));
  if (one.ttft_ms !== null) shown.append(make("p", `TTFT seen ${time(one.ttft_ms)}`));
  if (one.said) shown.append(make("p", one.said, "what"));
  return shown;
}

function plot(curve, now) {
  const wide = 320, high = 130, left = 44, bottom = 30, top = 8, right = 10;
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  picture.setAttribute("role", "img");
  const at = now && now.concurrency > 0 ? now.concurrency : null;
  const said = at === null ? "idle" : `${at} in flight`;
  picture.setAttribute("aria-label", `TPOT over concurrency, now ${said}`);
  const n = curve.points.map((point) => point.concurrency), tpot = curve.points.map((point) => point.tpot_ms);
  const least = Math.min(...n, at || Infinity), most = Math.max(...n, at || 1, least + 1), worst = Math.max(...tpot) * 1.1;
  const log = Math.log(most / least);
  const x = (value) => left + ((wide - left - right) * Math.log(value / least)) / log;
  const y = (value) => high - bottom - ((high - bottom - top) * value) / worst;
  draw(picture, "path", { class: "axis", d: `M${left},${top} V${high - bottom} H${wide - right}` });
  draw(picture, "text", { x: left - 4, y: y(worst) + 8, "text-anchor": "end" }, time(worst));
  draw(picture, "text", { x: left - 4, y: high - bottom, "text-anchor": "end" }, "0");
  draw(picture, "text", { x: left, y: high - bottom + 12 }, String(least));
  draw(picture, "text", { x: wide - right, y: high - bottom + 12, "text-anchor": "end" }, String(most));
  const title = `TPOT over requests in flight, ${curve.isl} in, ${curve.osl} out`;
  draw(picture, "text", { x: (left + wide) / 2, y: high - 4, "text-anchor": "middle" }, title);
  draw(picture, "polyline", { class: "curve", points: n.map((value, i) => `${x(value)},${y(tpot[i])}`).join(" ") });
  n.forEach((value, i) => draw(picture, "circle", { class: "point", cx: x(value), cy: y(tpot[i]), r: 2.5 }));
  if (at !== null) {
    draw(picture, "line", { class: "now", x1: x(at), x2: x(at), y1: top, y2: high - bottom });
    const anchor = x(at) > wide / 2 ? "end" : "start";
    draw(picture, "text", { x: x(at) + (anchor === "end" ? -4 : 4), y: top + 8, "text-anchor": anchor }, `now ${at}`);
    if (now.tpot_ms !== null) draw(picture, "circle", { class: "here", cx: x(at), cy: y(now.tpot_ms), r: 4 });
  }
  return picture;
}

function deployment(one) {
  const shown = make("article");
  shown.append(make("h3", one.name));
  const what = [one.served_model || one.model, one.engine, one.accelerator, one.sharding].filter(Boolean).join(", ");
  shown.append(make("p", what, "what"));
  if (one.kv_blocks) {
    const { free, blocks } = one.kv_blocks, held = Math.max(0, blocks - free);
    shown.append(bar("KV held by this gateway", held / blocks, `${held.toLocaleString()} of ${blocks.toLocaleString()} blocks`));
  }
  for (const each of one.endpoints) shown.append(endpoint(each));
  if (one.curve) shown.append(plot(one.curve, one.now));
  else shown.append(make("p", "Nothing is measured of it, so there is no curve.", "what"));
  return shown;
}

function decision(one) {
  const row = make("tr");
  const when = new Date(one.at * 1000).toLocaleTimeString();
  const cells = [when, one.route || "", one.deployment || "", one.reason || ""];
  cells.push(time(one.ttft_predicted_ms), time(one.ttft_ms), time(one.took_ms));
  for (const cell of cells) row.append(make("td", cell));
  row.append(make("td", one.outcome, one.outcome === "ok" ? "up" : "down"));
  return row;
}

async function show() {
  const state = byId("state");
  try {
    const answer = await fetch("v1/agentroute/fleet", key ? { headers: { authorization: `Bearer ${key}` } } : {});
    byId("login").hidden = answer.status !== 401;
    if (!answer.ok) {
      state.textContent = answer.status === 401 ? "locked" : `the gateway answered ${answer.status}`;
      return;
    }
    const told = await answer.json();
    byId("fleet").replaceChildren(...told.deployments.map(deployment));
    byId("decisions").replaceChildren(...told.decisions.map(decision));
    byId("none").hidden = told.decisions.length > 0;
    const ends = told.deployments.flatMap((one) => one.endpoints), up = ends.filter((one) => one.up).length;
    state.textContent = `${up} of ${ends.length} endpoints up, ${told.queued} waiting, ${new Date().toLocaleTimeString()}`;
  } catch {
    state.textContent = "the gateway does not answer";
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  key = byId("key").value.trim();
  sessionStorage.setItem("agentroute-key", key);
  byId("key").value = "";
  show();
});

async function keepShowing() {
  await show();
  setTimeout(keepShowing, EVERY_MS);
}

keepShowing();
