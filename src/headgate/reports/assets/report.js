"use strict";
// --- numbers as people read them ---
const digits = (v) => {
  const size = Math.abs(v);
  if (v === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return v.toExponential(1).replace("e+", "e");
  return size >= 1000 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(3)));
};
const bytes = (v) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (Math.abs(v) >= 1024 && i < 4) { v /= 1024; i++; }
  return digits(v) + " " + units[i];
};
const say = {
  "%": (v) => digits(v * 100) + " %",
  "B": bytes,
  "B/s": (v) => bytes(v) + "/s",
};
const told = (unit) => say[unit] || digits;
const two = (n) => String(Math.floor(n)).padStart(2, "0");
const clock = (t) => {
  if (t === 0) return "0";
  if (t < 60) return digits(t) + " s";
  return t < 3600 ? Math.floor(t / 60) + ":" + two(t % 60) + " min" : Math.floor(t / 3600) + ":" + two(t / 60 % 60) + " h";
};

// Draws the plots of a report below `root`, and sorts its tables. `close` of what it returns undoes that, so that
// newer sections can take the place of those. In a report of one file, what there is to draw is in #data.
const drawReport = (root, data) => {
  const ends = new AbortController();
  const observers = [];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const DASHES = [[], [6, 4], [2, 3]];
  const drawn = {};
  const onResize = (place, then) => {
    const observer = new ResizeObserver(then);
    observer.observe(place);
    observers.push(observer);
  };

  const BINARY = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
  const byteSteps = [0, 1, 2, 3, 4].flatMap((p) => BINARY.map((n) => n * 1024 ** p));
  const timeSteps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

  // --- the time under the cursor, marked in the timeline too ---
  const gantt = root.querySelector(".gantt");
  const lines = gantt ? [...gantt.querySelectorAll(".track")].map((track) => {
    const line = document.createElement("span");
    line.className = "now";
    line.hidden = true;
    track.append(line);
    return line;
  }) : [];
  const markTimeline = (t) => {
    for (const line of lines) {
      line.hidden = t === null;
      if (t !== null) line.style.left = t / data.seconds * 100 + "%";
    }
  };

  const xs = (plot) => Array.from({ length: plot.count }, (_, i) => plot.first + i * plot.width);

  // The loss from 1, where it began, to 0, the lowest that it reached.
  const relative = (line) => {
    const known = line.mean.filter((v) => v !== null);
    const least = Math.min(...known), span = known[0] - least;
    const scaled = (list) => list && list.map((v) => (v === null ? null : span ? (v - least) / span : 0));
    return { ...line, mean: scaled(line.mean), low: scaled(line.low), high: scaled(line.high) };
  };

  function draw(figure, plot) {
    const place = figure.querySelector(".canvas");
    const buttons = [...figure.querySelectorAll(".legend button")];
    const when = figure.querySelector(".when");
    const boxes = [...figure.querySelectorAll("[data-option]")];
    // A page that is loaded again may find its boxes as they were left.
    const chosen = Object.fromEntries(boxes.map((box) => [box.dataset.option, box.checked]));
    const hidden = new Set();
    const sparse = plot.unit === "loss" || plot.unit === "";  // single points, which have no natural zero
    const say = told(plot.unit);
    const ofX = plot.x === "step" ? digits : clock;
    let u;

    function build() {
      if (u) u.destroy();
      // A logarithm has no place for what is not positive.
      const usable = (list) => (chosen.log ? list.map((v) => (v !== null && v > 0 ? v : null)) : list);
      const series = [{}], columns = [xs(plot)], bands = [];
      const ofLine = [];
      const shown = plot.lines.map((line) => (chosen.relative ? relative(line) : line));
      shown.forEach((line, i) => {
        const stroke = () => colour(line.colour);
        const common = { show: !hidden.has(i), spanGaps: sparse, points: { show: line.mean.filter((v) => v !== null).length < 3, size: 5 } };
        if (line.high) {
          const edge = { ...common, width: 0, points: { show: false }, stroke: "transparent" };
          series.push({ ...edge }, { ...edge });
          columns.push(usable(line.high), usable(line.low));
          bands.push({ series: [series.length - 2, series.length - 1], fill: () => colour(line.colour) + "2b" });
        }
        series.push({
          ...common, stroke, width: line.stepped ? 1.5 : 1.75, dash: DASHES[line.dash % 3],
          paths: line.stepped ? uPlot.paths.stepped({ align: -1 }) : undefined,
        });
        columns.push(usable(line.mean));
        ofLine[i] = { mean: series.length - 1, all: line.high ? [series.length - 3, series.length - 2, series.length - 1] : [series.length - 1] };
      });
      const linear = (_, low, high) => {
        if (low === null) return [0, 1];
        const bottom = sparse ? low - (high - low) * 0.05 : 0;
        const upper = Math.max(plot.top || 0, high);
        // What is far below the whole is shown at its own size, not as a line along the bottom.
        const top = plot.top && high < plot.top / 4 && plot.unit !== "%" ? high : upper;
        return [Math.min(bottom, low), (top > bottom ? top + (top - bottom) * 0.06 : bottom + 1)];
      };
      const axis = { stroke: () => colour("ink-soft"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
      u = new uPlot({
        width: Math.max(place.clientWidth, 120), height: place.clientHeight, series, bands,
        legend: { show: false },
        cursor: {
          y: false, points: { size: 6 }, drag: { x: true, y: false },
          focus: { prox: -1 },
          ...(plot.x === "time" ? { sync: { key: "time", scales: ["x", null] } } : {}),
        },
        scales: { x: { time: false, range: (_, low, high) => (low === null ? [plot.from, plot.to] : [low, high]) }, y: chosen.log ? { distr: 3 } : { range: linear } },
        axes: [
          { ...axis, size: 28, space: 70, ...(plot.x === "step" ? {} : { incrs: timeSteps }), values: (_, ticks) => ticks.map(ofX) },
          {
            ...axis, size: plot.unit[0] === "B" ? 74 : 56, space: 34, ...(plot.unit[0] === "B" ? { incrs: byteSteps } : {}),
            values: (_, ticks) => ticks.map((v) => (v === null ? "" : say(v))),
          },
        ],
        hooks: {
          setCursor: [(self) => {
            const i = self.cursor.idx;
            const t = i === null || i === undefined || self.cursor.left < 0 ? null : columns[0][i];
            when.textContent = t === null ? "" : "at " + (plot.x === "step" ? "step " : "") + ofX(t) + (plot.x === "cpu" ? " of CPU time" : "");
            if (plot.x === "time") markTimeline(t);
            const values = [];
            buttons.forEach((button, n) => {
              const v = t === null ? null : nearest(columns[ofLine[n].mean], i);
              if (v !== null) values.push(`${plot.lines[n].label} ${say(v)}`);
              button.querySelector(".at").textContent = v === null ? "" : say(v);
              const why = button.querySelector(".why");
              if (why) why.textContent = v === null ? "" : said(plot.lines[n].notes, i);
            });
            place.setAttribute("aria-valuenow", i ?? 0);
            place.setAttribute("aria-valuetext", t === null ? "no place chosen" : `${when.textContent}: ${values.join(", ") || "nothing"}`);
          }],
        },
      }, columns, place);
      u.setScale("x", { min: plot.from, max: plot.to });
      drawn[plot.key] = { u, plot, ofLine };
      redraws.set(figure, () => u.redraw(false));
    }

    // The value under the cursor, or where that bucket has none, the closest one of a few before it.
    const nearest = (list, i) => {
      for (let k = i; k >= Math.max(0, i - 12); k--) if (list[k] !== null) return list[k];
      return null;
    };

    // What was said last of a line by then.
    const said = (notes, i) => notes.reduce((found, [from, text]) => (from <= i ? text : found), "");

    place.setAttribute("aria-valuemax", plot.count - 1);
    build();
    buttons.forEach((button, n) => button.addEventListener("click", () => {
      hidden.has(n) ? hidden.delete(n) : hidden.add(n);
      button.setAttribute("aria-pressed", String(!hidden.has(n)));
      for (const s of drawn[plot.key].ofLine[n].all) u.setSeries(s, { show: !hidden.has(n) });
    }));
    for (const box of boxes) {
      box.addEventListener("change", () => { chosen[box.dataset.option] = box.checked; build(); });
    }
    place.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (step) {
        const from = u.cursor.idx ?? (step > 0 ? -1 : plot.count);
        const i = Math.min(Math.max(from + step, 0), plot.count - 1);
        u.setCursor({ left: u.valToPos(u.data[0][i], "x"), top: 1 }, true, true);
      } else if ("+-".includes(event.key)) {
        const { min, max } = u.scales.x, middle = u.data[0][u.cursor.idx] ?? (min + max) / 2;
        const half = (max - min) * (event.key === "+" ? 0.25 : 1);
        u.setScale("x", { min: Math.max(middle - half, plot.from), max: Math.min(middle + half, plot.to) });
      } else if (event.key === "Escape") {
        u.setScale("x", { min: plot.from, max: plot.to });
        u.setCursor({ left: -10, top: -10 }, true, true);
      } else return;
      event.preventDefault();
    });
    onResize(place, () => {
      const width = Math.max(place.clientWidth, 120);
      if (u.width !== width) u.setSize({ width, height: place.clientHeight });
    });
  }

  // --- tables: sorted by a click on a heading, and told to be wider than the screen where they are ---
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const figure = cell.querySelector("[data-value]");
    const text = figure ? figure.dataset.value : cell.textContent.trim();
    const number = text === "" || isNaN(text) ? null : Number(text);
    return { number, text };
  };
  const compare = (a, b) => {
    if (a.number !== null && b.number !== null) return a.number - b.number;
    if ((a.number === null) !== (b.number === null)) return a.number === null ? 1 : -1;
    return a.text.localeCompare(b.text);
  };
  for (const table of root.querySelectorAll(".scroll > table")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      if (!heading.textContent) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        headings.forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows].map((row) => ({ row, value: valueOf(row, column) }));
        rows.sort((a, b) => (down ? compare(b.value, a.value) : compare(a.value, b.value)));
        table.tBodies[0].append(...rows.map(({ row }) => row));
      });
    });
    const place = table.parentElement;
    onResize(place, () => place.classList.toggle("wide", place.scrollWidth > place.clientWidth + 1));
  }

  const redraws = new Map();
  dark.addEventListener("change", () => redraws.forEach((redraw) => redraw()), { signal: ends.signal });
  for (const plot of data.plots) {
    const figure = root.querySelector(`figure[data-plot="${plot.key}"]`);
    if (figure) draw(figure, plot);
  }
  const close = () => {
    ends.abort();
    for (const observer of observers) observer.disconnect();
    for (const { u } of Object.values(drawn)) u.destroy();
  };
  return { data, drawn, close };
};
const embedded = document.getElementById("data");
if (embedded) window.headgate = drawReport(document, JSON.parse(embedded.textContent));  // for tests
// A frame in a notebook is as high as what it shows, up to its `max-height`.
if (embedded && window.frameElement) {
  new ResizeObserver(() => { frameElement.style.height = document.body.scrollHeight + 2 + "px"; }).observe(document.body);
}
