"use strict";
// The live parts of the pages. Text of jobs is only ever put into the page as text.
(() => {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const at = (id) => document.getElementById(id);
  const runs = new Map();  // id → { facts, jobs: Map(name → job) }
  let nodes = {}, machine = {}, trouble = "";
  let events = [];  // those that are not shown yet
  let decisions = [];
  const MOST_EVENTS = 200, MOST_LOG = 400000;

  const element = (tag, properties = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name.includes("-") || name === "role") made.setAttribute(name, value); else made[name] = value;
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  };
  const setText = (place, text) => { if (place.textContent !== text) place.textContent = text; };
  const notice = (text, stays = false) => {
    const place = at("notice");
    place.hidden = !text;
    setText(place, text || "");
    if (text && !stays) setTimeout(() => { if (place.textContent === text) place.hidden = true; }, 12000 + 60 * text.length);
  };
  const jobPath = (run, job) => `/runs/${encodeURIComponent(run)}/jobs/${encodeURIComponent(job)}`;
  const coresText = (cores) => `${digits(cores)} core${digits(cores) === "1" ? "" : "s"}`;
  const seconds = (value) => {
    if (value < 1) return digits(value) + " s";
    if (value < 90) return Math.round(value) + " s";
    if (value < 5400) return Math.round(value / 60) + " min";
    return value < 172800 ? digits(value / 3600) + " h" : digits(value / 86400) + " days";
  };
  const HOUR = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit" });
  const DAY = new Intl.DateTimeFormat([], { weekday: "short", day: "numeric", month: "short" });
  const moment = (epoch) => {
    if (!Number.isFinite(epoch)) return "";
    const then = new Date(epoch * 1000);
    return then.toDateString() === new Date().toDateString() ? HOUR.format(then) : `${DAY.format(then)} ${HOUR.format(then)}`;
  };
  const coded = (text) => text.split("`").map((part, i) => (i % 2 ? element("code", { textContent: part }) : part));

  // --- what a cell of the table of jobs says: text, and what it is sorted and filtered by ---
  const progress = (job) => {
    if (job.epochs) return [`epoch ${job.epoch ?? 0} of ${job.epochs}`, (job.epoch ?? 0) / job.epochs];
    if (job.steps) return [`step ${(job.step ?? 0).toLocaleString("en")} of ${job.steps.toLocaleString("en")}`, (job.step ?? 0) / job.steps];
    return job.step === null ? ["", -1] : [`step ${job.step.toLocaleString("en")}`, job.step];
  };
  const ending = (job, run) => {
    if (job.state === "waiting" && job.expected && run.facts.began) return ["starts " + moment(run.facts.began + job.expected), job.expected];
    if (job.ends && job.state === "running") return [moment(job.ends.median), job.ends.median];
    return ["", Infinity];
  };
  const elapsed = (job, run) => (job.started === null ? 0 : (job.ended ?? run.facts.t) - job.started);
  const lost = (job, run) => (job.verdict && elapsed(job, run) > 0 ? Math.min((job.verdict.seconds || 0) / elapsed(job, run), 1) : 0);
  const number = (value, say) => (value === null || value === undefined ? ["", -Infinity] : [say(value), value]);
  // The arguments of a script by name: of `--lr 0.1 --fast depth=3` these are lr, fast and depth.
  const parsed = new Map();
  const givenTo = (job) => {
    const text = job.arguments || "";
    if (!parsed.has(text)) {
      const words = text.split(/\s+/), given = {};
      words.forEach((word, i) => {
        const [, dashes, name, value] = /^(--?)?([a-z_][\w.-]*)(?:=(.*))?$/i.exec(word) || [];
        const next = /^(-[a-z]|--)/i.test(words[i + 1] ?? "--") ? "yes" : words[i + 1];
        if (name && (dashes || value !== undefined)) given[name.toLowerCase()] = value ?? next;
      });
      if (parsed.size > 2000) parsed.clear();
      parsed.set(text, given);
    }
    return parsed.get(text);
  };
  // A figure of a job by name: what Headgate knows of it, a metric, or an argument.
  const figureOf = (job, name) => {
    if (name in FIGURES) return job[FIGURES[name]];
    const metric = Object.keys(job.metrics).find((known) => known.toLowerCase() === name);
    const value = metric === undefined ? givenTo(job)[name] : job.metrics[metric];
    return value === undefined || value === null || value === "" || Number.isNaN(Number(value)) ? value : Number(value);
  };
  let chosen = "";  // the metric or argument that a column of its own shows
  const CHOSEN = "chosen";
  const gpusOf = ({ gpus, gpu_busy: busy }) => gpus.length ? gpus.join(", ") + (busy === null ? "" : ` ${digits(busy * 100)} %`) : "";
  const COLUMNS = [
    ["job", "text", (job) => [job.name, job.name]],
    ["state", "text", (job, run) => [job.state + (job.started === null ? "" : " " + seconds(elapsed(job, run))), job.state]],
    ["progress", "text", progress],
    ["until", "text", ending],
    ["loss", "", (job) => number(job.loss, (v) => String(Number(v.toPrecision(4))))],
    [CHOSEN, "of-choice", (job) => { const value = figureOf(job, chosen); return number(value, (v) => (typeof v === "number" ? digits(v) : v)); }],
    ["verdict", "text", (job, run) => (job.verdict ? [job.verdict.kind + (lost(job, run) > 0.01 ? ` −${digits(Math.round(lost(job, run) * 100))} %` : ""), lost(job, run)] : ["", -1])],
    ["share", "", (job) => number(job.share || null, (v) => coresText(v))],
    ["cpu", "", (job) => number(job.cpu, digits)],
    ["memory", "", (job) => number(job.memory, bytes)],
    ["gpu", "text", (job) => [gpusOf(job), job.gpus.length]],
    ["why", "text why", (job) => [job.reason, job.reason]],
  ];
  const FIGURES = { loss: "loss", cpu: "cpu", share: "share", memory: "memory", step: "step", epoch: "epoch", threads: "threads", workers: "workers" };

  const spark = (losses) => {
    const known = losses.filter((v) => v !== null);
    if (known.length < 2) return "";
    // halves, whose differences do not overflow
    const low = Math.min(...known) / 2, span = Math.max(...known) / 2 - low || 1;
    return losses.map((v, i) => (v === null ? "" : `${(i / (losses.length - 1) * 60).toFixed(1)},${(15 - (v / 2 - low) / span * 14).toFixed(1)}`)).join(" ");
  };

  // --- the table of jobs: only rows that can be seen are there, and of them only what changed is written ---
  const MOST_WHOLE = 60, SPARE_ROWS = 12;
  class JobTable {
    constructor(table) {
      this.rows = new Map();  // key → { key, run, job, place: its row while that is there, text: what the filter looks at }
      this.order = [];  // rows that fit the filter, as they are sorted
      this.isStale = false;  // whether that may be otherwise by now
      this.arranged = 0;
      this.height = 34;
      this.table = table;
      this.body = table.tBodies[0];
      this.frame = table.closest(".scroll");
      this.sorted = ["", 1];
      this.words = [];
      const row = table.tHead.insertRow();
      for (const [name, kind] of COLUMNS) {
        const button = element("button", { type: "button", textContent: name });
        const heading = element("th", { scope: "col", className: kind }, button);
        row.append(heading);
        button.addEventListener("click", () => this.sortBy(name, heading));
      }
      this.headings = [...row.cells];
      row.ariaRowIndex = 1;
      // In place of rows that cannot be seen: above, below, and between the others and the one with the focus.
      this.gaps = [1, 2, 3].map(() => element("tr", { hidden: true, "aria-hidden": "true" }, element("td", { colSpan: COLUMNS.length })));
      this.body.append(...this.gaps);
      let due = false;
      const scrolled = () => { if (!due) { due = true; requestAnimationFrame(() => { due = false; this.draw(); }); } };
      this.frame.addEventListener("scroll", scrolled, { passive: true });
      for (const kind of ["scroll", "resize"]) addEventListener(kind, scrolled, { passive: true });
      at("whole").addEventListener("change", () => this.draw());
      at("filter").addEventListener("input", (event) => { this.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean); this.arrange(); this.draw(); });
    }
    sortBy(name, heading) {
      const way = this.sorted[0] === name ? -this.sorted[1] : 1;
      this.sorted = [name, way];
      for (const other of this.headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
      this.arrange();
      this.draw();
    }
    update(run, job) {
      const key = run.facts.id + "/" + job.name;
      const row = this.rows.get(key) || { key, place: null };
      if (!this.rows.has(key)) { this.rows.set(key, row); this.arranged = 0; }
      Object.assign(row, { run, job, text: null, isStale: true });
      this.isStale = true;
    }
    // What figures change moves rows at most every two seconds.
    show() {
      const rest = this.arranged + 2000 - Date.now();
      if (this.isStale && rest > 0) this.later ??= setTimeout(() => { this.later = null; this.show(); }, rest);
      else if (this.isStale) this.arrange();
      this.draw();
    }
    arrange() {
      this.isStale = false;
      this.arranged = Date.now();
      this.order = [...this.rows.values()].filter((row) => this.fits(row));
      const column = COLUMNS.find(([name]) => name === this.sorted[0]);
      if (column) {
        const values = new Map(this.order.map((row) => [row, column[2](row.job, row.run)[1]]));
        this.order.sort((a, b) => {
          const [x, y] = [values.get(a), values.get(b)];
          return (typeof x === "number" && typeof y === "number" ? (x === y ? 0 : x < y ? -1 : 1) : String(x).localeCompare(String(y))) * this.sorted[1];
        });
      }
      const [every, shown] = [this.rows.size, this.order.length];
      setText(at("count"), shown === every ? `${every} job${every === 1 ? "" : "s"}` : `${shown} of ${every} jobs`);
      this.table.setAttribute("aria-rowcount", shown + 1);
    }
    draw(isFirst = true) {
      at("whole-choice").hidden = this.order.length <= MOST_WHOLE;
      const spans = this.spans(), rows = spans.flatMap(([first, end]) => this.order.slice(first, end));
      keepFocus(this.body, () => this.put(spans, new Set(rows.map((row) => this.place(row)))));
      for (const row of rows) if (row.isStale) this.write(row);
      const height = rows.length ? rows[0].place.offsetHeight : 0;
      if (height && height !== this.height) {
        this.height = height;
        if (isFirst) this.draw(false);
      }
    }
    // The rows that are to be there, as [first, end): those in view, and the one with the focus.
    spans() {
      const count = this.order.length;
      if (count <= MOST_WHOLE || at("whole").checked) return [[0, count]];
      const top = this.body.getBoundingClientRect().top, frame = this.frame.getBoundingClientRect();
      const row = (y, spare) => Math.min(Math.max(Math.floor((y - top) / this.height) + spare, 0), count);
      const first = row(Math.max(frame.top, 0), -SPARE_ROWS), end = Math.max(row(Math.min(frame.bottom, innerHeight), SPARE_ROWS), first);
      const focused = this.order.indexOf(this.rows.get(document.activeElement.closest("tr.job")?.dataset.job));
      if (focused < 0 || (focused >= first && focused < end)) return [[first, end]];
      return [[first, end], [focused, focused + 1]].sort(([a], [b]) => a - b);
    }
    put(spans, stay) {
      for (const place of this.body.querySelectorAll("tr.job")) {
        if (!stay.has(place)) { place.remove(); this.rows.get(place.dataset.job).place = null; }
      }
      let before = null, shown = 0;
      const follow = (place) => {
        const next = before ? before.nextSibling : this.body.firstChild;
        if (next !== place) this.body.insertBefore(place, next);
        before = place;
      };
      this.gaps.forEach((gap, i) => {
        const [first, end] = spans[i] || [this.order.length, this.order.length];
        follow(gap);
        gap.hidden = first === shown;
        gap.style.height = (first - shown) * this.height + "px";
        for (let index = first; index < end; index++) {
          const { place } = this.order[index];
          follow(place);
          if (place.ariaRowIndex !== String(index + 2)) place.ariaRowIndex = index + 2;
        }
        shown = end;
      });
    }
    place(row) {
      if (row.place) return row.place;
      row.place = element("tr", { className: "job" });
      row.place.dataset.job = row.key;
      for (const [i, [name, kind]] of COLUMNS.entries()) {
        const cell = element(i ? "td" : "th", { className: kind });
        if (i === 0) { cell.scope = "row"; cell.append(element("a", { href: jobPath(row.run.facts.id, row.job.name) })); }
        if (name === "loss") cell.innerHTML = '<svg class="spark" viewBox="0 0 60 16" aria-hidden="true"><polyline fill="none" stroke="currentColor" points=""></polyline></svg><span></span>';
        row.place.append(cell);
      }
      row.isStale = true;
      return row.place;
    }
    write(row) {
      row.isStale = false;
      for (const [i, [name, , say]] of COLUMNS.entries()) {
        const [text] = say(row.job, row.run), cell = row.place.cells[i];
        if (name === "loss") {
          const line = cell.firstChild.firstChild, points = spark(row.job.losses);
          if (line.getAttribute("points") !== points) line.setAttribute("points", points);
          setText(cell.lastChild, text);
        } else setText(i === 0 ? cell.firstChild : cell, text);
        if (name === "state") cell.className = "text state " + row.job.state;
        if (name === "why" && cell.title !== text) cell.title = text;
      }
    }
    fits(row) {
      return this.words.every((word) => {
        const figure = /^([a-z_][a-z_0-9./-]*)(<=|>=|<|>|=)(-?[\d.]+(?:e-?\d+)?)$/.exec(word);
        if (!figure) return this.text(row).includes(word);
        const value = figureOf(row.job, figure[1]);
        const limit = Number(figure[3]);
        if (value === null || value === undefined) return false;
        return { "<": value < limit, ">": value > limit, "<=": value <= limit, ">=": value >= limit, "=": value === limit }[figure[2]];
      });
    }
    text(row) {
      row.text ??= [...COLUMNS.map(([, , say]) => say(row.job, row.run)[0]), row.job.arguments || ""].join(" ").toLowerCase();
      return row.text;
    }
    drop(run) {
      for (const [key, row] of this.rows) if (row.run.facts.id === run) { row.place?.remove(); this.rows.delete(key); }
      this.arrange();
    }
  }
  const table = at("jobs") && at("jobs").tagName === "TABLE" ? new JobTable(at("jobs")) : null;

  // --- the metrics and arguments that there are, to choose one for a column ---
  const choices = new Set();
  const addChoices = (job) => {
    for (const name of [...Object.keys(job.metrics).map((metric) => metric.toLowerCase()), ...Object.keys(givenTo(job))]) {
      if (choices.has(name) || name in FIGURES || choices.size > 200) continue;
      choices.add(name);
      at("chosen").append(element("option", { value: name, textContent: name }));
    }
  };
  const showChosen = () => {
    const place = [...at("jobs").tHead.querySelectorAll("button")][COLUMNS.findIndex(([name]) => name === CHOSEN)];
    place.textContent = chosen;
    at("jobs").classList.toggle("chosen", chosen !== "");
  };
  at("chosen")?.addEventListener("change", (event) => {
    chosen = event.target.value;
    showChosen();
    for (const [id, run] of runs) for (const name of run.jobs.keys()) mark(id, name);
    schedule();
  });
  if (table) showChosen();

  // --- what is slow, and why: jobs by the part of their time that they lost ---
  const showSlow = () => {
    const every = [...runs.values()].flatMap((run) => [...run.jobs.values()].map((job) => ({ run, job, part: lost(job, run) })));
    const worth = every.filter(({ job, part }) => job.verdict && (part > 0.02 || ["failed", "killed"].includes(job.state))).sort((a, b) => b.part - a.part).slice(0, 5);
    const list = at("slow");
    at("nothing").hidden = every.length > 0;
    if (trouble) setText(at("nothing"), "What runs is not known: " + trouble);
    const lines = worth.map(({ run, job, part }) => {
      const verdict = job.verdict;
      const to = { "": "", others: " to programs outside Headgate" }[verdict.culprit || ""] ?? ` to ${verdict.culprit}`;
      return [
        `${run.facts.id}/${job.name}`,
        () => [
          element("a", { href: jobPath(run.facts.id, job.name), textContent: job.name, className: "name" }), " ",
          element("span", { className: "badge held", textContent: verdict.kind }), " ",
          element("b", { textContent: `lost ${digits(Math.round(part * 100))} % of its time${to}` }),
          element("p", {}, ...coded(verdict.why)),
          verdict.next ? element("p", {}, element("strong", { textContent: "Next: " }), ...coded(verdict.next)) : null,
        ],
        `${part.toFixed(2)} ${verdict.why} ${verdict.next}`,
      ];
    });
    if (!lines.length && every.length) lines.push(["none", () => ["Nothing is held back by more than 2 % of its time, as far as it is known."], "none"]);
    const mark = JSON.stringify(lines.map(([key, , text]) => [key, text]));
    if (list.dataset.mark === mark) return;
    list.dataset.mark = mark;
    keepFocus(list, () => list.replaceChildren(...lines.map(([, make]) => element("li", {}, ...make()))));
  };

  const bar = (name, part, text) => element("div", { className: "meter" },
    element("span", { textContent: name }), element("meter", { min: 0, max: 1, value: Math.min(part, 1), "aria-label": `${name}: ${text}` }), element("span", { textContent: text }));
  // Of a link whose speed is not known, its rate alone.
  const network = (node, way) => {
    const rate = node["net_" + way], speed = node.nic_bytes_per_second;
    if (rate === null) return null;
    if (speed) return bar(`net ${way}`, rate / speed, `${bytes(rate)}/s of ${bytes(speed)}/s`);
    return element("div", { className: "meter" }, element("span", { textContent: `net ${way}` }), element("span", { textContent: `${bytes(rate)}/s` }));
  };
  const showNodes = () => {
    const every = Object.values(nodes);
    at("nodes-section").hidden = every.length === 0;
    at("nodes").replaceChildren(...every.map((node) => element("div", { className: "card" },
      element("h3", { textContent: node.name }), element("small", { textContent: node.description }),
      node.cores && node.cpu_cores !== null ? bar("CPU", node.cpu_cores / node.cores, `${digits(node.cpu_cores)} of ${digits(node.cores)} cores`) : null,
      node.total_memory_bytes && node.memory_bytes !== null ? bar("memory", node.memory_bytes / node.total_memory_bytes, `${bytes(node.memory_bytes)} of ${bytes(node.total_memory_bytes)}`) : null,
      node.gpus && node.gpu_busy !== null ? bar(`${node.gpus} GPU${node.gpus === 1 ? "" : "s"}`, node.gpu_busy, `${digits(node.gpu_busy * 100)} % busy${node.gpu_memory_bytes ? `, ${bytes(node.gpu_memory_bytes)}` : ""}`) : null,
      ...["in", "out"].map((way) => network(node, way)))));
  };

  // Jobs of all users, as this user may see them.
  const showUsers = () => {
    const jobs = machine.jobs ?? [];
    at("users-section").hidden = jobs.length === 0;
    at("drained").hidden = !machine.drained;
    at("users").tBodies[0].replaceChildren(...jobs.slice(0, MOST_EVENTS).map((job) => {
      const { cores, workers, memory_bytes: memory, gpus } = job.demand;
      const needs = [cores ? coresText(cores) : "", memory ? bytes(workers * memory) : "", job.gpus.length ? `GPU ${job.gpus.join(", ")}` : "", !job.gpus.length && gpus ? `${workers * gpus} GPU${workers * gpus === 1 ? "" : "s"}` : ""];
      const ahead = (at) => seconds(Math.max(at - machine.at, 0));
      let start = job.since !== null ? `${seconds(machine.at - job.since)} ago` : "not known";
      if (job.at !== null) start = `in about ${ahead(job.at)}${job.latest !== null ? `, at the latest ${ahead(job.latest)}` : ""}`;
      const texts = [job.name === null ? `a job of ${job.user}` : `${job.user}:${job.name}`, job.waits === null ? "running" : `waits, ${job.before || "none"} before it`, needs.filter(Boolean).join(", "), start];
      return element("tr", {}, ...texts.map((textContent, i) => element(i ? "td" : "th", { textContent, className: "text", ...(i ? {} : { scope: "row" }) })));
    }));
  };

  // The newest is above; only new ones are added, and as many of the oldest go.
  const momentOf = (event) => { const began = runs.get(event.run)?.facts.began; return began ? time(began + event.t) : clock(event.t); };
  const eventRow = (event) => element("tr", { event },
    element("td", { className: "when" }),
    element("th", { scope: "row", className: "text" }, event.job ? element("a", { href: jobPath(event.run, event.job), textContent: event.job }) : event.run),
    element("td", { className: "text" + (event.kind === "warning" ? " trouble" : ""), textContent: event.text }));
  const showEvents = () => {
    const body = at("events").tBodies[0];
    body.prepend(...events.reverse().map(eventRow));
    while (body.rows.length > MOST_EVENTS) body.lastChild.remove();
    for (const row of body.rows) if (runs.has(row.event.run) || !row.cells[0].textContent) setText(row.cells[0], momentOf(row.event));
    events = [];
    at("events-section").hidden = body.rows.length === 0;
  };

  const SECOND = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const time = (epoch) => (Number.isFinite(epoch) ? SECOND.format(new Date(epoch * 1000)) : "");
  const whyDecided = async (decision, cell) => {
    const answer = await fetch(`${jobPath(decision.run, decision.job)}/why?event=${decision.id}`);
    const { lines, error } = await answer.json();
    cell.replaceChildren(element("pre", { className: "why", textContent: error || lines.join("\n") }));
  };
  const decided = new Map();  // id of a decision → its row, which may have been opened
  const showDecisions = () => {
    const ids = new Set(decisions.map(({ run, id }) => `${run} ${id}`));
    for (const [id, row] of decided) if (!ids.has(id)) { row.remove(); decided.delete(id); }
    for (const decision of decisions) {
      const id = `${decision.run} ${decision.id}`;
      if (decided.has(id)) continue;
      const button = element("button", { type: "button", textContent: "Show", "aria-label": `Show what led to this decision about ${decision.job}` });
      const cell = element("td", { className: "text" }, button);
      button.addEventListener("click", () => whyDecided(decision, cell));
      const row = element("tr", {},
        element("td", { className: "when", textContent: time(decision.at) }),
        element("th", { scope: "row", className: "text" }, element("a", { href: jobPath(decision.run, decision.job), textContent: decision.job })),
        element("td", { className: "text", textContent: decision.text }), cell);
      decided.set(id, row);
      at("decisions").tBodies[0].prepend(row);
    }
    at("decisions-section").hidden = decided.size === 0;
  };

  // --- live runs, and where each of them runs ---
  const placeOf = ({ engine, address, cluster }) => {
    if (engine) return engine[0].toUpperCase() + engine.slice(1) + (address ? ` at ${address}` : "");
    return cluster ? `lab ${cluster}` : "this machine";
  };
  const counts = (run) => {
    const states = new Map();
    for (const { state } of run.jobs.values()) states.set(state, (states.get(state) || 0) + 1);
    return [...states].map(([state, count]) => `${count} ${state}`).join(", ");
  };
  const cards = new Map();  // id of a run → what its card says of it
  const showRuns = () => {
    if (facts.kind === "run" && runs.has(facts.run)) setText(at("place"), `${placeOf(runs.get(facts.run).facts)}, ${counts(runs.get(facts.run))}`);
    if (facts.kind !== "now") return;
    for (const [id, place] of cards) if (!runs.has(id)) { place.parentElement.remove(); cards.delete(id); }
    for (const [id, run] of runs) {
      if (!cards.has(id)) {
        const place = element("span", {});
        at("live").append(element("li", {}, element("a", { href: `/runs/${encodeURIComponent(id)}`, textContent: id, className: "name" }), place,
          element("div", { className: "tools" }, ...buttons(OF_A_RUN, id))));
        cards.set(id, place);
      }
      const { policy, began, command } = run.facts;
      setText(cards.get(id), [placeOf(run.facts), counts(run), `policy ${policy}`, began ? `since ${moment(began)}` : "", command].filter(Boolean).join(" · "));
    }
    at("live-section").hidden = cards.size === 0;
  };

  const showJob = () => {
    const run = runs.get(facts.run), job = run && run.jobs.get(facts.job);
    if (!job) return;
    setText(at("state"), job.state);
    at("state").className = "state " + job.state;
    setText(at("reason"), job.reason);
    if (!at("figures")) return;
    const lines = COLUMNS.slice(2).filter(([name]) => name !== "why").map(([name, , say]) => [name, say(job, run)[0]]);
    if (job.urgent) lines.push(["urgent", "goes first"]);
    if (job.priority !== 1) lines.push(["priority", digits(job.priority)]);
    if (job.most_cores !== null) lines.push(["most cores", digits(job.most_cores)]);
    lines.push(...Object.entries(job.metrics).map(([name, value]) => [name, value === null ? "nan" : digits(value)]));
    at("figures").replaceChildren(...lines.filter(([, text]) => text).map(([name, text]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: text }))));
    const tasks = job.tasks || [];
    at("tasks-section").hidden = tasks.length < 2;
    const gpu = tasks.some((task) => task.gpus.length) ? ["gpu"] : [];
    const columns = ["task", "node", "state", "share", "cpu", "memory", ...gpu, "net_in", "net_out"];
    const said = (task, name) => {
      if (name === "gpu") return gpusOf(task);
      if (typeof task[name] !== "number") return task[name] ?? "";
      return name === "memory" || name.startsWith("net") ? bytes(task[name]) : digits(task[name]);
    };
    const row = (tag, texts) => element("tr", {}, ...texts.map((textContent) => element(tag, { className: "text", textContent, ...(tag === "th" && { scope: "col" }) })));
    at("tasks").tHead.replaceChildren(row("th", columns.map((name) => name.replace("_", " "))));
    at("tasks").tBodies[0].replaceChildren(...tasks.map((task) => row("td", columns.map((name) => said(task, name)))));
  };

  // --- drawn at most four times a second, and not at all while nobody looks ---
  const changed = new Set();
  const parts = new Set();
  let due = false;
  // A press ends on what it began on: a link that is moved or made anew meanwhile would not be followed.
  let released = Promise.resolve(), release = null;
  addEventListener("pointerdown", (event) => { if (!release && !event.button) released = new Promise((resolve) => { release = resolve; }); }, { capture: true });
  const letGo = () => { if (release) setTimeout(release); release = null; schedule(); };  // after its click
  for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, letGo, { capture: true });
  addEventListener("blur", letGo);  // of the window
  addEventListener("pointermove", (event) => { if (release && !event.buttons) letGo(); });  // it was let go elsewhere
  const show = () => {
    due = false;
    if (document.hidden || release) return;
    if (table) {
      for (const key of changed) {
        const [id, name] = key, run = runs.get(id), job = run && run.jobs.get(name);
        if (job) { addChoices(job); table.update(run, job); }
      }
      at("jobs-section").hidden = table.rows.size === 0;
      table.show();
    }
    changed.clear();
    if (facts.kind === "now") {
      showSlow();
      if (parts.has("nodes")) showNodes();
      if (parts.has("machine")) showUsers();
      if (parts.has("decisions")) showDecisions();
      if (parts.has("events")) showEvents();
    }
    if (facts.kind === "job") showJob();
    showRuns();
    showRefusals();
    parts.clear();
  };
  const keys = new Map();
  const mark = (run, job) => {
    const text = run + "/" + job;
    if (!keys.has(text)) keys.set(text, [run, job]);
    changed.add(keys.get(text));
  };
  const schedule = () => {
    if (due) return;
    due = true;
    setTimeout(() => requestAnimationFrame(show), 250);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { for (const [id, run] of runs) for (const name of run.jobs.keys()) mark(id, name); schedule(); } });

  // The page of a run that has ended is another one; what was asked for meanwhile is answered first.
  const requests = new Set();
  const loadAgain = async () => {
    await Promise.allSettled(requests);
    if (!at("notice").hidden) sessionStorage.setItem("notice", at("notice").textContent);
    location.reload();
  };
  notice(sessionStorage.getItem("notice"), true);
  sessionStorage.removeItem("notice");

  const take = (message) => {
    for (const [id, change] of Object.entries(message.runs)) {
      if (!runs.has(id)) runs.set(id, { facts: { id, t: 0 }, jobs: new Map() });
      const run = runs.get(id);
      Object.assign(run.facts, change.facts);
      for (const [name, fields] of Object.entries(change.jobs)) {
        const job = Object.assign(run.jobs.get(name) || {}, fields);
        run.jobs.set(name, job);
        if (ENDED.includes(job.state) && awaited.delete(`${id}/${name}`)) notice(`${name} is ${job.state}: ${job.reason}`);
        mark(id, name);
      }
      if (change.facts.began) {  // from which times are known
        parts.add("events");
        for (const name of run.jobs.keys()) mark(id, name);
      }
    }
    for (const id of message.gone || []) {
      for (const name of runs.get(id)?.jobs.keys() || []) keys.delete(id + "/" + name);
      runs.delete(id);
      if (table) table.drop(id);
      if (facts.kind === "now") loadPast();
      if (facts.run === id) loadAgain();
    }
    if ("trouble" in message) {
      if (message.trouble || at("notice").textContent === trouble) notice(message.trouble);
      trouble = message.trouble;
    }
    if (message.decisions) { decisions = message.decisions; parts.add("decisions"); }
    if (message.machine) { machine = message.machine; parts.add("machine"); }
    if (message.nodes) { nodes = message.nodes; parts.add("nodes"); }
    if (message.events.length) { events = [...events, ...message.events].slice(-MOST_EVENTS); parts.add("events"); }
    schedule();
  };
  const connect = () => {
    const source = new EventSource("/live" + (facts.run ? "?run=" + encodeURIComponent(facts.run) : ""));
    source.addEventListener("all", (event) => {
      setText(at("connection"), "live");
      at("connection").className = "connection live";
      for (const id of runs.keys()) if (table) table.drop(id);
      runs.clear();
      keys.clear();
      events = [];
      at("events")?.tBodies[0].replaceChildren();
      take(JSON.parse(event.data));
    });
    source.addEventListener("change", (event) => take(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      setText(at("connection"), "not connected; trying again");
      at("connection").className = "connection lost";
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
    });
  };

  // --- what a reader has chosen stays when its place is made anew ---
  const FOCUSABLE = "a, button, input, select, summary, [tabindex]";
  const keepFocus = (place, change) => {
    if (!place.contains(document.activeElement)) { change(); return; }
    const all = () => [...place.querySelectorAll(FOCUSABLE)];
    const focused = document.activeElement, index = all().indexOf(focused), link = focused?.getAttribute("href");
    change();
    if (document.activeElement === focused) return;
    const same = focused.isConnected ? focused : all().find((other, i) => (link ? other.getAttribute("href") === link : i === index));
    same?.focus({ preventScroll: true });
  };
  const CHOICES = [
    ["details", (part) => part.open, (part, value) => { part.open = value; }],
    ["[data-option]", (part) => part.checked, (part, value) => { if (part.checked !== value) part.click(); }],
    [".legend button", (part) => part.getAttribute("aria-pressed"), (part, value) => { if (value === "false") part.click(); }],
    ["thead th", (part) => ["ascending", "descending"].indexOf(part.getAttribute("aria-sort")) + 1, (part, value) => { while (value-- > 0) part.querySelector("button").click(); }],
    [".scroll", (part) => [part.scrollLeft, part.scrollTop], (part, value) => part.scrollTo(...value)],
  ];
  const choiceOf = (part) => [part.closest("[data-plot]")?.dataset.plot, part.closest("[role=region]")?.getAttribute("aria-label"), part.dataset.job, part.dataset.option, part.dataset.line, part.cellIndex].join();
  const keepChoices = (place, change) => {
    const chosen = CHOICES.map(([selector, read]) => new Map([...place.querySelectorAll(selector)].map((part) => [choiceOf(part), read(part)])));
    const shown = Object.entries(drawing?.drawn || {}).map(([key, { u, plot }]) => [key, u.scales.x.min === plot.from && u.scales.x.max === plot.to ? null : { ...u.scales.x }, u.data[0][u.cursor.idx] ?? null]);
    keepFocus(place, change);
    for (const [i, [selector, , choose]] of CHOICES.entries()) {
      for (const part of place.querySelectorAll(selector)) if (chosen[i].has(choiceOf(part))) choose(part, chosen[i].get(choiceOf(part)));
    }
    for (const [key, zoom, at] of shown) {
      const u = drawing.drawn[key]?.u;
      if (u && zoom) u.setScale("x", { min: zoom.min, max: zoom.max });
      if (u && at !== null && place.querySelector(`[data-plot="${key}"]`).contains(document.activeElement)) u.setCursor({ left: u.valToPos(at, "x"), top: 1 }, true, true);
    }
  };

  // --- sections of what was recorded, made anew while a run goes on ---
  let drawing = null;
  const linkJobs = (place) => {
    for (const row of place.querySelectorAll("#results tr[data-job], #summary tr[data-job]")) {
      const link = element("a", { href: jobPath(facts.run, row.dataset.job), textContent: row.dataset.job });
      const text = [...row.cells[0].childNodes].find((part) => part.textContent.trim() === row.dataset.job);
      text?.replaceWith(link);
    }
  };
  const loadSections = async () => {
    const path = { now: "", run: `/runs/${encodeURIComponent(facts.run)}`, job: jobPath(facts.run, facts.job) }[facts.kind];
    let wait = 10;
    try {
      if (!document.hidden || !drawing) {
        const answer = await fetch(path + "/sections");
        const made = await answer.json();
        if (!answer.ok) throw new Error(made.error);
        await released;
        const place = at("sections");
        keepChoices(place, () => {
          if (drawing) drawing.close();
          place.innerHTML = made.html;  // made by the server from templates that escape all text
          if (facts.kind === "run") linkJobs(place);
          drawing = drawReport(place, made.data);
        });
        window.headgate = drawing;
        if (!made.live) return;
        wait = Math.max(10, 10 * made.took);
      }
    } catch (error) {
      if (!drawing) setText(at("sections"), "This could not be read: " + error.message);
    }
    setTimeout(loadSections, wait * 1000);
  };
  const loadPast = async () => {
    const answer = await fetch("/past");
    if (!answer.ok) return;
    const made = await answer.text();
    await released;
    keepFocus(at("past"), () => { at("past").innerHTML = made; });  // as above
    const boxes = [...at("past").querySelectorAll("input")], button = at("compare");
    for (const box of boxes) {
      box.addEventListener("change", () => {
        const chosen = boxes.filter((other) => other.checked);
        button.disabled = chosen.length !== 2;
        for (const other of boxes) other.disabled = chosen.length === 2 && !other.checked;
      });
    }
    if (button) {
      button.addEventListener("click", () => {
        const [second, first] = boxes.filter((box) => box.checked).map((box) => encodeURIComponent(box.value));
        location.href = `/compare?first=${first}&second=${second}`;
      });
    }
  };

  // --- the log of a task, as it grows ---
  let logSource = null;
  const followLog = () => {
    if (logSource) logSource.close();
    const place = at("log"), task = at("task") ? "?task=" + encodeURIComponent(at("task").value) : "";
    logSource = new EventSource(jobPath(facts.run, facts.job) + "/log" + task);
    let size = 0;
    logSource.addEventListener("begin", () => { place.textContent = ""; size = 0; });
    logSource.addEventListener("text", (event) => {
      const bottom = at("follow").checked, text = JSON.parse(event.data), last = place.lastChild;
      // Whole lines are a block, so that no text above has to be laid out anew.
      const isTorn = last && !last.textContent.endsWith("\n") && last.textContent.length < MOST_LOG / 2;
      const end = isTorn ? text.indexOf("\n") + 1 || text.length : 0;
      if (end) last.textContent += text.slice(0, end);
      if (end < text.length) place.append(element("div", { textContent: text.slice(end) }));
      for (size += text.length; size > MOST_LOG && place.childNodes.length > 1; place.firstChild.remove()) size -= place.firstChild.textContent.length;
      if (bottom) place.scrollTop = place.scrollHeight;
    });
    logSource.addEventListener("end", () => logSource.close());
  };

  // --- what a user may do: each button asks first, and says what came of it ---
  const ask = ({ title, text, verb, fields = [] }) => new Promise((resolve) => {
    const dialog = at("ask");
    const inputs = fields.map(({ name, label, choices, ...properties }) => {
      const input = choices ? element("select", {}, ...choices.map(([value, said]) => element("option", { value, textContent: said }))) : element("input", { type: "number", step: "any", ...properties });
      return { name, input, label: element("label", {}, element("span", { textContent: label }), input) };
    });
    setText(at("ask-title"), title);
    setText(at("ask-text"), text);
    setText(dialog.querySelector("button.main"), verb);
    at("ask-fields").replaceChildren(...inputs.map(({ label }) => label));
    dialog.returnValue = "no";
    dialog.querySelector("[value=no]").onclick = () => dialog.close("no");  // no submit button: Enter in a field says yes
    dialog.addEventListener("close", () => {
      const typed = inputs.filter(({ input }) => input.value !== "").map(({ name, input }) => [name, input.type === "number" ? Number(input.value) : input.value]);
      resolve(dialog.returnValue === "yes" ? Object.fromEntries(typed) : null);
    }, { once: true });
    dialog.showModal();
  });
  const ENDED = ["done", "failed", "stopped", "killed", "skipped", "interrupted"];
  const beside = (run, job) => [...run.jobs.values()].filter((other) => other !== job && other.state === "running");
  const isRunning = (job) => (job.state === "running" ? "" : `It is ${job.state}.`);
  // Of each: its label, what is asked, and why it cannot be done to a job (`refused`) or to all of a run (`refusedAll`).
  const ACTS = {
    checkpoint: {
      label: "Save a checkpoint",
      asked: (what) => ({ title: `Have ${what} save a checkpoint?`, text: "It is saved at the end of the present step, and training goes on.", verb: "Save" }),
      refused: (job) => isRunning(job) || (job.saves ? "" : "It cannot save a checkpoint: its script uses none of headgate.torch, .keras and .jax, or has not connected yet."),
      refusedAll: (run) => ([...run.jobs.values()].some((job) => job.saves) ? "" : "None of its jobs can save a checkpoint: they use none of headgate.torch, .keras and .jax, or have not connected yet."),
    },
    resize: {
      label: "Resize",
      asked: (what, job) => ({ title: `Resize ${what}?`, text: "Workers of a parameter-server job join or leave while the others go on. A job that learns by all-reduce stops with a checkpoint, and goes on from it.", verb: "Resize", fields: [{ name: "workers", label: "Workers", value: job.workers, min: 1, step: 1, required: true }] }),
      refused: (job, run) => {
        if (job.strategy === "single") return `It runs as a single task. To have several, stop it, then type: headgate resume ${run.facts.id} --strategy allreduce --workers 2`;
        return job.strategy === "roles" ? "It is made of roles: set their count in its job file, and run it again." : isRunning(job);
      },
    },
    set: {
      label: "Priority and limits",
      asked: (what, job) => ({ title: `Change ${what}?`, text: "A job with a higher priority gets more where jobs contend. All hold from now on, and when it is resumed. An empty field stays as it is.", verb: "Change", fields: [
        { name: "priority", label: "Priority, up to 100", value: job.priority, min: 0, max: 100 },
        { name: "cores", label: "Most cores", value: job.most_cores ?? "", placeholder: "no limit", min: 0 },
        { name: "memory", label: "Most memory of each worker", type: "text", placeholder: "as it is, or 4GiB" },
        { name: "timeout", label: "Timeout", type: "text", placeholder: "as it is, or 2h" },
        { name: "at_once", label: "Jobs of its run at once", type: "text", placeholder: "as it is, or 4, or auto" }] }),
      refused: () => "",
    },
    prove: {
      label: "Prove who slows it",
      labelAll: "Prove who slows whom",
      asked: (what, job, run) => ({ title: `Prove who slows ${what}?`, text: "Neighbours are held for short random moments, and it is measured whether its steps get faster. That takes some minutes. You may leave the page.", verb: "Prove", fields: [
        { name: "neighbour", label: "Neighbour to hold", choices: [["", "each in turn"], ...beside(run, job).map(({ name }) => [name, name])] },
        { name: "percent", label: "Most of its time, in %", value: 2, min: 0.1, max: 25 }] }),
      refused: (job, run) => isRunning(job) || (beside(run, job).length ? "" : "No other job of its run runs beside it."),
      refusedAll: (run) => (beside(run).length > 1 ? "" : "Two of its jobs have to run for that."),
    },
    pause: {
      label: "Pause",
      labelAll: "Pause all",
      asked: (what) => ({ title: `Pause ${what}?`, text: "A job that runs is frozen and keeps its memory, or ends with a checkpoint and starts again from that. A job that waits keeps its place in the queue.", verb: "Pause", fields: [
        { name: "release", label: "Its memory and GPUs", choices: [["", "stay with it"], ["yes", "go to others"]] }] }),
      refused: (job) => (["running", "waiting"].includes(job.state) ? "" : `It is ${job.state}.`),
      refusedAll: (run) => ([...run.jobs.values()].some((job) => ["running", "waiting"].includes(job.state)) ? "" : "None of its jobs runs or waits."),
    },
    unpause: {
      label: "Unpause",
      labelAll: "Unpause all",
      asked: (what) => ({ title: `Let ${what} go on?`, text: "A frozen job goes on at once. One that gave back its memory waits for room, and starts again from its checkpoint.", verb: "Unpause" }),
      refused: (job) => (job.state === "paused" ? "" : `It is ${job.state}, not paused.`),
      refusedAll: (run) => ([...run.jobs.values()].some((job) => job.state === "paused") ? "" : "None of its jobs is paused."),
    },
    stop: {
      label: "Stop",
      labelAll: "Stop all",
      asked: (what) => ({ title: `Stop ${what}?`, text: "A job that can saves a checkpoint at the end of its step, and ends. “headgate resume” goes on from it. Other scripts get a signal to end.", verb: "Stop" }),
      refused: (job) => (job.state === "stopping" ? "It is being stopped already." : ""),
      refusedAll: () => "",
    },
    kill: {
      label: "Kill",
      labelAll: "Kill all",
      asked: (what) => ({ title: `Kill ${what}?`, text: "It ends at once, without a checkpoint: what it learned since the last one is lost.", verb: "Kill" }),
      refused: () => "",
      refusedAll: () => "",
    },
  };
  const awaited = new Set();  // `RUN/JOB` of jobs whose end was asked for here
  const UNKNOWN = "It is not known yet how it stands.";
  const refusal = (name, run, job) => {
    if (!facts.acts) return "This link is for looking only.";
    if (!run || !run.jobs.size) return UNKNOWN;
    if (!job) return ACTS[name].refusedAll(run);
    return ENDED.includes(job.state) ? `It is ${job.state}.` : ACTS[name].refused(job, run);
  };
  const send = async (name, id, job, values) => {
    const { percent, ...others } = values;
    // Its end may be told before the answer comes, which then says nothing new.
    const jobs = job ? [job] : [...runs.get(id)?.jobs.keys() || []];
    const ends = ["stop", "kill"].includes(name) ? jobs.map((known) => `${id}/${known}`) : [];
    for (const key of ends) awaited.add(key);
    try {
      const response = await fetch(`/runs/${encodeURIComponent(id)}/${name}`, {
        method: "POST", headers: { "Content-Type": "application/json", "X-Headgate": "act" },
        body: JSON.stringify({ job: job || null, ...others, ...(percent === undefined ? {} : { pause_at_most: percent / 100 }) }),
      });
      const text = await response.text();
      if (!response.headers.get("Content-Type").includes("json")) return text;
      const answer = JSON.parse(text);
      if (answer.error) for (const key of ends) awaited.delete(key);
      else if (ends.length && !ends.some((key) => awaited.has(key))) return "";
      return answer.error ? "Refused: " + answer.error : answer.done;
    } catch (error) {
      return `It could not be asked for: ${error.message}`;
    }
  };
  const press = async (button) => {
    const { act: name, run: id, job: jobName } = button.dataset;
    const run = runs.get(id), job = run?.jobs.get(jobName);
    const reason = refusal(name, run, job);
    if (reason) { notice(reason); return; }
    const values = await ask(ACTS[name].asked(jobName || `all jobs of run ${id}`, job, run));
    if (!values) return;
    button.disabled = true;
    if (name === "prove") notice("It is being proved. The result will be shown here.", true);
    const request = send(name, id, jobName, values).then((text) => { if (text) notice(text, name === "prove"); });  // which takes minutes
    requests.add(request);
    await request;
    requests.delete(request);
    button.disabled = false;
    if (document.activeElement === document.body) button.focus();  // which it had
  };
  // A button that does not apply can still be reached, and says why it does not.
  const showRefusals = () => {
    for (const button of document.querySelectorAll("[data-act]")) {
      const { act: name, run: id, job } = button.dataset;
      const reason = refusal(name, runs.get(id), runs.get(id)?.jobs.get(job));
      if (button.title !== reason) { button.title = reason; button.setAttribute("aria-disabled", String(reason !== "")); }
    }
  };
  const buttons = (names, id, job) => names.map((name) => {
    const label = (job ? null : ACTS[name].labelAll) || ACTS[name].label;
    const button = element("button", { type: "button", textContent: label, title: UNKNOWN, "aria-disabled": "true", "data-act": name, "data-run": id, "data-job": job || "" });
    button.addEventListener("click", () => press(button));
    return button;
  });
  const OF_A_JOB = ["checkpoint", "resize", "set", "prove", "pause", "unpause", "stop", "kill"], OF_A_RUN = ["checkpoint", "prove", "pause", "unpause", "stop", "kill"];
  at("acts")?.append(...buttons(facts.kind === "job" ? OF_A_JOB : OF_A_RUN, facts.run, facts.job));

  if (["now", "run", "job"].includes(facts.kind)) connect();
  if (facts.kind === "now") loadPast();
  if (["now", "run", "job"].includes(facts.kind)) loadSections();
  if (facts.kind === "compare") drawReport(document, { plots: [], seconds: 0 });
  if (facts.kind === "job") {
    followLog();
    at("task")?.addEventListener("change", followLog);
    at("ask-why").addEventListener("click", async () => {
      const answer = await fetch(jobPath(facts.run, facts.job) + "/why");
      const said = await answer.json();
      at("why").replaceChildren(element("pre", { className: "why", textContent: said.error || said.lines.join("\n") || "Nothing was decided yet." }));
    });
  }
})();
