// The record, and what is looked up in it. What stands at its default is left out of the record.
const record = JSON.parse(document.getElementById("record").textContent);
const rules = JSON.parse(document.getElementById("rules").textContent);
const audit = record.audit;
const maps = new Map((record.maps || []).map((item) => [item.map.id, item]));
const groups = new Map((record.groups || []).map((item) => [item.contract.equivalence_group, item]));
const ladders = new Map();
for (const item of maps.values()) {
  const group = item.map.selection.equivalence_group;
  if (!ladders.has(group)) ladders.set(group, []);
  ladders.get(group).push(item);
}
for (const ladder of ladders.values()) {
  ladder.sort((one, two) => two.map.selection.priority - one.map.selection.priority || (one.map.id < two.map.id ? -1 : 1));
}

// One row for each map in each decision; a decision of a group without maps has one row without a map.
const decisionRows = [];
const rowsOfMap = new Map();
const decisionsOfGroup = new Map();
for (const entry of record.decisions || []) {
  const decision = entry.decision;
  const candidates = decision.candidates || [];
  const eligible = candidates.filter(isEligible).length;
  const about = {
    entry, decision, hole: decision.provider === null, single: decision.provider !== null && eligible === 1,
    hay: [entry.circuit, entry.hosts.join(" "), decision.name, decision.op, decision.phase, decision.group,
      ...decision.weights.map((use) => `${use.port}=${use.format} ${use.tensor}`)].join(" ").toLowerCase(),
  };
  if (!decisionsOfGroup.has(decision.group)) decisionsOfGroup.set(decision.group, []);
  decisionsOfGroup.get(decision.group).push(about);
  for (const candidate of candidates.length ? candidates : [null]) {
    const row = { about, candidate, outcome: outcomeOf(candidate, about) };
    decisionRows.push(row);
    if (candidate) {
      if (!rowsOfMap.has(candidate.id)) rowsOfMap.set(candidate.id, []);
      rowsOfMap.get(candidate.id).push(row);
    }
  }
}

function isEligible(candidate) {
  return (candidate.reasons || []).every((reason) => reason.check === "rank");
}

function outcomeOf(candidate, about) {
  if (!candidate) return "no provider";
  if (candidate.selected) return "selected";
  if (!isEligible(candidate)) return "rejected";
  return about.hole ? "tied" : "outranked";
}

// What the audit found to be the smallest change that selects a candidate there; "" if it was not asked.
const flips = new Map();
for (const item of audit.candidates) {
  for (const op of item.ops) for (const host of item.hosts) flips.set(JSON.stringify([item.id, item.circuit, item.phase, op, host]), item.flip);
}

function flipOf(row) {
  const { entry, decision } = row.about;
  const found = entry.hosts.map((host) => flips.get(JSON.stringify([row.candidate.id, entry.circuit, decision.phase, decision.name, host])));
  return [...new Set(found.filter(Boolean))].join("; ");
}

function outcomeOfMap(id) {
  const found = new Set((rowsOfMap.get(id) || []).map((row) => row.outcome));
  return ["selected", "tied", "outranked", "rejected"].find((name) => found.has(name)) || "not asked for";
}

function evidenceOf(item) {
  if (!item.evidence) return "none";
  return (item.gaps || []).length ? "stale" : "valid";
}

function variantsText(variants) {
  const parts = [];
  const off = [];
  for (const variant of variants) {
    if (!variant.enabled) {
      off.push(`${variant.name} off: ${variant.why_not}`);
      continue;
    }
    const guards = Object.entries(variant.guards || {})
      .map(([name, bound]) => `${name.slice(0, -4)}${name.endsWith("min") ? "≥" : "≤"}${bound}`);
    parts.push(guards.length ? `${variant.name} if ${guards.join(" and ")}` : variant.name);
    if (!guards.length) break;
  }
  return parts.join(", else ") + (off.length ? ` (${off.join("; ")})` : "");
}

function code(name) {
  const rule = rules[name];
  return rule ? el("abbr", { title: `${rule.title}. ${rule.meaning}` }, name) : name;
}

function reasonList(reasons) {
  return el("ul", { class: "reasons" }, reasons.map((reason) => el("li", {}, code(reason.code), ` ${reason.message}`)));
}

// A text whose ids of maps and groups are links.
function linked(text) {
  return text.split(/([a-z][a-z0-9_]*)/).map((part, index) => {
    if (index % 2 === 0) return part;
    return maps.has(part) ? mapLink(part) : groupLink(part);
  });
}

function rankText(status, priority) {
  return el("span", { class: "rank" }, `${status} ${priority}`);
}

function groupLink(group) {
  return groups.has(group) ? link(pageHash("group", group), group) : group;
}

function mapLink(id) {
  return maps.has(id) ? link(pageHash("map", id), id) : id;
}
