// The sections that are lists. Each is made when it is first shown.
const phaseOf = (item) => [item.phase];

function decisionsView() {
  return {
    title: "Decisions", word: "row", items: decisionRows, nothing: "Nothing was decided.",
    hint: "Every op in every phase, with every map of its group: the one selected, and why each other one is not. "
      + "Another group is never looked at.",
    facets: {
      circuit: (row) => [row.about.entry.circuit],
      phase: (row) => [row.about.decision.phase],
      host: (row) => row.about.entry.hosts,
      status: (row) => (row.candidate ? [row.candidate.status] : []),
      outcome: (row) => [row.outcome, row.about.hole && "no provider", row.about.single && "one provider only"],
    },
    hay: (row) => (row.candidate
      ? [row.candidate.id, row.outcome, ...(row.candidate.reasons || []).map((reason) => `${reason.code} ${reason.message}`)].join(" ")
      : "no provider"),
    list: decisionList,
  };
}

// Rows of one decision stand together under its heading.
function decisionList(results) {
  let last = null;
  let add = null;
  return (row) => {
    if (row.about !== last) {
      last = row.about;
      const rows = row.candidate ? table(`Maps for ${last.decision.name}`, ["Map", "Rank", "Outcome"]) : null;
      add = rows && rows.add;
      results.append(decisionCard(last, rows ? rows.made : el("p", { class: "note" }, "The group has no provider.")));
    }
    if (row.candidate) addCandidate(add, row);
  };
}

function decisionCard(about, body) {
  const { entry, decision } = about;
  const weights = decision.weights.map((use) => {
    const rows = use.rows ? ` rows ${use.rows[0]}-${use.rows[1] - 1}` : "";
    const prepared = use.prepared_format ? `, prepared as ${use.prepared_format}` : "";
    return el("li", {}, `${use.port} = ${use.format} ${use.shape.join("×")} from ${use.tensor}${rows}${prepared}`);
  });
  const inputs = Object.entries({ ...decision.dims, ...decision.params }).map(([name, value]) => `${name} = ${value}`);
  return el("article", { class: about.hole ? "decision bad" : "decision" },
    el("h2", {}, decision.name, " ", badge(decision.phase, "phase"), about.hole ? badge("no provider", "bad") : "",
      about.single ? badge("one provider only", "thin") : ""),
    el("p", { class: "where" }, [entry.circuit, layersText(decision.layers), `on ${entry.hosts.join(", ")}`].filter(Boolean).join(" · ")),
    el("p", { class: "where" }, "group ", groupLink(decision.group)),
    el("details", {}, el("summary", {}, "What decided it: formats and dims"),
      weights.length ? el("ul", {}, weights) : "", inputs.length ? el("p", {}, inputs.join(", ")) : "",
      el("p", { class: "digest" }, `contract ${decision.contract_digest}`), el("p", {}, `declared at ${decision.where}`)),
    body);
}

function addCandidate(add, row) {
  const { candidate, outcome } = row;
  const flip = candidate.selected ? "" : flipOf(row);
  add([
    mapLink(candidate.id),
    rankText(candidate.status, candidate.priority),
    [badge(outcome, outcome), candidate.selected ? ` ${variantsText(row.about.decision.variants || [])}` : "",
      (candidate.reasons || []).length ? reasonList(candidate.reasons) : "",
      flip ? el("p", { class: "flip" }, flip) : ""],
  ], outcome);
}

function groupsView() {
  const items = [...groups.values()].map((group) => ({ group, maps: ladders.get(group.contract.equivalence_group) || [] }));
  const asked = (item) => decisionsOfGroup.get(item.group.contract.equivalence_group) || [];
  return {
    title: "Groups", word: "group", items, nothing: "There is no group.",
    hint: "An equivalence group is one contract and every map that meets it: all of them compute the same numbers.",
    facets: {
      op: (item) => [item.group.contract.op],
      phase: (item) => asked(item).map((about) => about.decision.phase),
      host: (item) => asked(item).flatMap((about) => about.entry.hosts),
      outcome: (item) => (asked(item).length ? asked(item).map((about) => (about.hole ? "no provider" : "decided")) : ["not asked for"]),
    },
    hay: ({ group, maps: ladder }) => [group.contract.equivalence_group, group.contract.op, group.contract.summary || "",
      ...ladder.map((item) => item.map.id)].join(" "),
    list: inTable("Groups", ["Group", "Op", "Maps", "Asked for by"], (item) => [
      groupLink(item.group.contract.equivalence_group), item.group.contract.op, String(item.maps.length),
      [...new Set(asked(item).map((about) => `${about.entry.circuit} ${about.decision.name}`))].join(", ") || "nothing",
    ]),
  };
}

function mapsView() {
  const items = [...maps.values()].map((item) => ({ item, rows: rowsOfMap.get(item.map.id) || [], outcome: outcomeOfMap(item.map.id) }));
  const facets = {
    status: ({ item }) => [item.map.selection.status],
    phase: ({ item }) => item.map.selection.phases,
    host: ({ rows }) => rows.flatMap((row) => row.about.entry.hosts),
    outcome: ({ outcome }) => [outcome],
    evidence: ({ item }) => [evidenceOf(item)],
  };
  return {
    title: "Maps", word: "map", items, facets, nothing: "There is no map.", together: mapFits(facets),
    hint: "Every map with the best that became of it. With a host or phase chosen, the outcome is the one there.",
    hay: ({ item }) => [item.map.id, item.map.op, item.map.selection.equivalence_group, item.map.summary, item.map.impl.backend].join(" "),
    list: inTable("Maps", ["Map", "Status", "Phases", "Outcome", "Evidence"], ({ item, outcome }) => [
      [mapLink(item.map.id), el("p", { class: "sub" }, item.map.summary)],
      rankText(item.map.selection.status, item.map.selection.priority),
      item.map.selection.phases.join(", "), badge(outcome, outcome), evidenceText(item),
    ]),
  };
}

// A host, phase and outcome must hold in one and the same decision.
function mapFits(facets) {
  return (item, query) => {
    for (const name of ["status", "evidence"]) {
      if (query.get(name) && !facets[name](item).includes(query.get(name))) return false;
    }
    const [host, phase, outcome] = ["host", "phase", "outcome"].map((name) => query.get(name));
    if (!host && !phase) return !outcome || item.outcome === outcome;
    if (!host && !item.rows.length) return item.item.map.selection.phases.includes(phase) && (!outcome || item.outcome === outcome);
    return item.rows.some((row) => (!host || row.about.entry.hosts.includes(host))
      && (!phase || row.about.decision.phase === phase) && (!outcome || row.outcome === outcome));
  };
}

function evidenceText(item) {
  const gaps = (item.gaps || []).join(", ");
  return [badge(evidenceOf(item), `evidence-${evidenceOf(item)}`), item.evidence && gaps ? ` ${gaps}` : ""];
}

function claimsView() {
  const items = [...maps.values()].flatMap((item) => (item.map.claims || []).map((claim) => ({ item, claim })));
  return {
    title: "Claims", word: "claim", items, nothing: "No map repeats a published figure.",
    hint: "Published figures that maps repeat, and what was measured here beside each.",
    facets: { measured: ({ claim }) => [claimState(claim)], status: ({ item }) => [item.map.selection.status] },
    hay: ({ item, claim }) => [item.map.id, claim.text, claim.source, claim.reproduced ? Object.values(claim.reproduced).join(" ") : ""].join(" "),
    list: inTable("Claims", ["Map", "Claim", "Source", "Measured here"], ({ item, claim }) => [
      mapLink(item.map.id), claim.text, claim.source, measuredText(claim),
    ]),
  };
}

function claimState(claim) {
  if (!claim.reproduced) return "not measured";
  return claim.reproduced.comparable ? "comparable" : "not comparable";
}

function measuredText(claim) {
  const found = claim.reproduced;
  if (!found) return badge("not measured", "thin");
  return [badge(claimState(claim), found.comparable ? "good" : "idle"), ` ${found.text} (${found.host}, ${found.shape})`];
}

function candidatesView() {
  return {
    title: "Candidates", word: "row", items: audit.candidates.map((item) => ({ ...item })), nothing: "No candidate was asked for.",
    hint: "What each candidate lacks where it is not selected, and the smallest change that would select it.",
    facets: { circuit: (item) => [item.circuit], phase: phaseOf, host: (item) => item.hosts, outcome: (item) => [item.reasons.length ? "rejected" : "selected"] },
    hay: (item) => [item.id, item.circuit, ...item.ops, item.flip, ...item.reasons.map((reason) => `${reason.code} ${reason.message}`)].join(" "),
    list: inTable("Candidates", ["Map", "Where", "Lacks", "Smallest change"], (item) => [
      mapLink(item.id), `${item.circuit} ${item.ops.join(", ")} (${item.phase}) on ${item.hosts.join(", ")}`,
      reasonList(item.reasons), item.flip,
    ]),
  };
}

function findingsView() {
  return {
    title: "Findings", word: "finding", items: audit.findings.map((item) => ({ ...item })), nothing: "The audit found nothing.",
    hint: "What the audit found, worst first: what has no provider or one only, what never runs, what is not proved.",
    facets: { severity: (item) => [item.severity], rule: (item) => [`${item.code} ${(rules[item.code] || {}).title || ""}`] },
    hay: (item) => [item.code, item.severity, item.message, item.help || "", item.file || ""].join(" "),
    list: inTable("Findings", ["Rule", "Finding", "Place"], (item) => [
      [badge(item.severity), " ", code(item.code), el("p", { class: "sub" }, (rules[item.code] || {}).title || "")],
      [el("p", { class: "message" }, linked(item.message)), item.help ? el("p", { class: "flip" }, item.help) : ""],
      item.file ? el("span", { class: "place" }, `${item.file}${item.line ? `:${item.line}:${item.column}` : ""}`) : "",
    ], (item) => item.severity),
  };
}

function changesView() {
  const where = (item) => [item.circuit, item.op, item.phase, item.layers && `layers ${item.layers}`,
    (item.hosts || []).length && `on ${item.hosts.join(", ")}`].filter(Boolean).join(" ");
  return {
    title: "Changes", word: "change", items: (record.diff.changes || []).map((item) => ({ ...item })), nothing: "Nothing changed.",
    hint: `From ${record.diff.before} to ${record.diff.after}, worst class first.`,
    facets: { class: (item) => [item.kind], circuit: (item) => [item.circuit], phase: phaseOf, host: (item) => item.hosts || [] },
    hay: (item) => [item.kind, item.subject, where(item), item.before, item.after].filter(Boolean).join(" "),
    list: inTable("Changes", ["Class", "What", "Before", "After"], (item) => [
      item.kind,
      [item.subject ? el("p", { class: "message" }, linked(item.subject)) : "",
        el("p", { class: "sub" }, where(item))],
      item.before || "", item.after || "",
    ]),
  };
}
