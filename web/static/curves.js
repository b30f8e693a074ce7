// Draws what a slice or a node used: see templates/_curves.html for its attributes.
"use strict";
(() => {
  const MOST_LINES = 6;
  const HEIGHT = 160; // pixels, as .curves-plot
  const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 4], [12, 4]];
  const BOUND_DASHES = { limit: [3, 5], guarantee: [10, 5] };
  // By curve: columns that are drawn, one that bounds them (of a node), the names of limit and guarantee (of slivers),
  // unit, factor.
  const CURVES = {
    memory: { slivers: ["working"], node: ["memory", "swap"], bound: "memory_total", limit: "memory", guarantee: "memory_guarantee", unit: "bytes" },
    cpu: { slivers: ["cpu"], node: ["cpu"], limit: null, unit: "cores" },
    disk: { slivers: ["disk"], node: ["disk"], bound: "disk_total", limit: "disk", unit: "bytes" },
    network: { slivers: ["net_in", "net_out"], node: ["net_in", "net_out"], unit: "bits", factor: 8 },
    reclaim: { slivers: ["reclaimed", "reread"], node: ["reclaimed", "reread"], limit: null, unit: "rate" },
    pressure: { slivers: ["pressure"], node: ["pressure"], limit: null, unit: "share", factor: 1e-6 },
    slivers: { slivers: [], node: ["lxc", "kvm"], limit: null, unit: "count" },
  };
  const WORDS = { lxc: "containers", kvm: "machines", memory: "memory", working: "working set", swap: "swap", cpu: "cores", disk: "disk", net_in: "in", net_out: "out",
    reclaimed: "taken back", reread: "read again", pressure: "waiting for memory",
    memory_total: "there is", disk_total: "there is" };
  const COLUMNS = [...new Set(Object.values(CURVES).flatMap((one) => [...one.slivers, ...one.node, one.bound]))].filter(Boolean);
  const OF_NODES = ["memory_total", "disk_total", "lxc", "kvm"]; // what slivers have no column for

  const scaled = (value, step, units) => {
    let at = 0;
    while (Math.abs(value) >= step && at < units.length - 1) { value /= step; at += 1; }
    const digits = value === Math.trunc(value) || Math.abs(value) >= 100 ? 0 : 1;
    return `${value.toFixed(digits)} ${units[at]}`;
  };
  const FORMATS = {
    bytes: (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]),
    rate: (value) => scaled(value, 1024, ["B/s", "KiB/s", "MiB/s", "GiB/s"]),
    bits: (value) => scaled(value, 1000, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"]),
    cores: (value) => (Math.abs(value) < 10 ? value.toFixed(2) : value.toFixed(1)),
    share: (value) => `${(100 * value).toFixed(1)} %`,
    count: (value) => value.toFixed(Number.isInteger(value) ? 0 : 1),
  };
  const told = (unit, value) => (value === null || value === undefined ? "–" : FORMATS[unit](value));

  const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power); // steps between marks of bytes and counts
  const pad = (number) => String(number).padStart(2, "0");
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const clock = (moment) => `${pad(moment.getHours())}:${pad(moment.getMinutes())}`;
  const day = (moment) => `${moment.getDate()} ${MONTHS[moment.getMonth()]}`;
  // Marks of the time axis: days where they are a day apart, else the time of day.
  const times = (_, ticks, _axis, _space, step) => ticks.map((one) => (step >= 86400 ? day : clock)(new Date(one * 1000)));

  const element = (name, text, attributes = {}) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const shown = (values) => {
    const known = values.filter((one) => one !== null);
    if (!known.length) return { now: null, mean: null, most: null };
    const mean = known.reduce((sum, one) => sum + one, 0) / known.length;
    return { now: values[values.length - 1], mean, most: known.reduce((most, one) => Math.max(most, one)) };
  };

  class Curves {
    constructor(section) {
      this.section = section;
      this.plots = new Map();
      this.answer = null;
      this.asked = 0;
      this.since = section.querySelector("[data-curves-since]");
      this.state = section.querySelector("[data-curves-state]");
      this.since.addEventListener("change", () => this.load());
      for (const one of section.querySelectorAll("[data-curves-script]")) one.hidden = false;
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
      document.addEventListener("visibilitychange", () => { if (!document.hidden) this.load(); });
      new ResizeObserver(() => this.fit()).observe(section);
      const refresh = Number(section.dataset.curvesRefresh) || 30;
      const timer = setInterval(() => {
        if (!section.isConnected) clearInterval(timer);
        else if (!document.hidden) this.load();
      }, refresh * 1000);
      for (const figure of section.querySelectorAll("[data-curve]")) this.listen(figure);
      this.load();
    }

    address(more) {
      const url = new URL(this.section.dataset.curves, location.href);
      for (const [key, value] of Object.entries({ since: this.since.value, ...more })) url.searchParams.set(key, value);
      return url;
    }

    async load() {
      const turn = (this.asked += 1);
      this.section.querySelector("[data-curves-csv]").href = this.address({ format: "csv" });
      try {
        const many = Number(this.section.dataset.curvesSlivers) > MOST_LINES;
        const isNode = this.section.hasAttribute("data-curves-node");
        const columns = isNode ? COLUMNS.filter((one) => one !== "working") : COLUMNS.filter((one) => !OF_NODES.includes(one));
        const answer = await fetch(this.address({ columns: columns.join(","), ...(many ? { total: "true" } : {}) }), {
          headers: { Accept: "application/json" }, credentials: "same-origin" });
        if (turn !== this.asked) return;
        if (!answer.ok) throw new Error(`the service answers with ${answer.status}`);
        this.answer = await answer.json();
        const missing = this.answer.missing || [];
        this.say([this.answer.at.length ? "" : "No measurements in this period.",
          missing.length ? `These nodes do not answer: ${missing.join(", ")}.` : ""].join(" ").trim());
        this.draw();
      } catch (error) {
        if (turn === this.asked) this.say(`The curves could not be loaded: ${error.message}. They will be tried again.`);
      }
    }

    say(text) {
      if (this.state.textContent !== text) this.state.textContent = text;
    }

    // The lines of a curve: {label, values, limit}.
    lines(curve) {
      const factor = curve.factor || 1;
      const scale = (values) => (factor === 1 ? values : values.map((one) => (one === null ? null : one * factor)));
      if (this.answer.series) {
        const columns = [...curve.node, ...(curve.bound ? [curve.bound] : [])].filter((one) => this.answer.series[one]);
        return columns.map((one) => ({ label: WORDS[one], values: scale(this.answer.series[one]), limit: one === curve.bound }));
      }
      const parts = this.answer.slivers;
      const lines = parts.flatMap((part) => curve.slivers.map((one) => {
        const who = parts.length > 1 ? `${this.section.dataset.curvesTitle}/${part.index} ` : "";
        return { label: `${who}${who && curve.slivers.length === 1 ? "" : WORDS[one]}`.trim(), values: scale(part.series[one]), limit: false };
      }));
      for (const label of ["limit", "guarantee"]) {
        const bound = curve[label] && parts.length ? parts[0].limits[curve[label]] : 0;
        if (bound && lines.length) lines.push({ label, values: this.answer.at.map(() => bound), limit: true });
      }
      return lines;
    }

    draw() {
      if (!this.answer) return;
      const rows = [];
      for (const figure of this.section.querySelectorAll("[data-curve]")) {
        const curve = CURVES[figure.dataset.curve];
        const lines = this.lines(curve);
        const real = lines.filter((one) => !one.limit);
        figure.hidden = !this.answer.at.length;
        const name = figure.querySelector("figcaption").firstChild.textContent.trim();
        for (const one of real) rows.push({ name: real.length > 1 ? `${name}: ${one.label}` : name, unit: curve.unit, ...shown(one.values) });
        figure.querySelector("[data-curve-now]").textContent = real.length <= 2
          ? real.map((one) => (real.length > 1 ? `${one.label} ` : "") + told(curve.unit, shown(one.values).now)).join(", ") : "";
        if (!figure.hidden) this.plot(figure, curve, lines, name);
      }
      this.section.querySelector("[data-curves-rows]").replaceChildren(...rows.map((one) => {
        const row = element("tr");
        row.append(element("th", one.name, { scope: "row" }),
          ...["now", "mean", "most"].map((key) => element("td", told(one.unit, one[key]), { class: "number" })));
        return row;
      }));
    }

    plot(figure, curve, lines, name) {
      const style = getComputedStyle(this.section);
      const colour = (which) => style.getPropertyValue(`--curve-${which}`).trim();
      const held = figure.querySelector("[data-curve-plot]");
      const real = lines.filter((one) => !one.limit);
      held.setAttribute("aria-label", `${name} of ${this.section.dataset.curvesTitle}: ` + real.map((one) => {
        const { now, most } = shown(one.values);
        return `${one.label} current ${told(curve.unit, now)}, maximum ${told(curve.unit, most)}`;
      }).join("; "));
      // A limit far above everything would press the curve flat: it is drawn once it is near.
      const most = Math.max(0, ...real.map((one) => shown(one.values).most || 0));
      const drawn = lines.filter((one) => !one.limit || shown(one.values).most <= 2.5 * most);
      const axis = { stroke: colour("ink"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false } };
      const series = drawn.map((one, place) => ({ label: one.label, width: one.limit ? 1 : 1.75, points: { show: one.values.length === 1 },
        stroke: colour(one.limit ? "limit" : place % MOST_LINES + 1), dash: one.limit ? BOUND_DASHES[one.label] || BOUND_DASHES.limit : DASHES[place % MOST_LINES] }));
      const said = figure.querySelector("[data-curve-at]");
      const before = this.plots.get(figure);
      const held_at = before && document.activeElement === held ? before.cursor.idx : null;
      before?.destroy();
      this.plots.set(figure, new uPlot({
        width: held.clientWidth || 320, height: HEIGHT, padding: [6, 14, 0, 0], legend: { show: false }, cursor: { y: false, drag: { x: false, y: false } },
        scales: { x: { time: true, range: this.range() }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, curve.unit === "cores" ? 0.05 : 1)] } },
        axes: [{ ...axis, space: 60, size: 28, values: times }, { ...axis, size: 72, ...(["bytes", "rate", "count"].includes(curve.unit) ? { incrs: POWERS } : {}), values: (_, ticks) => ticks.map((one) => told(curve.unit, one)) }],
        series: [{}, ...series],
        hooks: { setCursor: [(plot) => this.describe(plot, said, drawn, curve.unit)] },
      }, this.gaps(drawn.map((one) => one.values)), held));
      if (held_at !== null) this.point(figure, held_at);
      this.legend(figure.querySelector("[data-curve-legend]"), drawn, series);
    }

    // The values under the pointer, as text below the curve.
    describe(plot, said, lines, unit) {
      const place = plot.cursor.idx;
      if (place === null || place === undefined || plot.cursor.left < 0) { said.textContent = ""; return; }
      const at = new Date(plot.data[0][place] * 1000);
      const values = lines.map((one, column) => `${lines.length > 1 ? `${one.label} ` : ""}${told(unit, plot.data[column + 1][place])}`);
      said.textContent = `${day(at)}, ${clock(at)}: ${values.join(", ")}`;
    }

    // Points at one measurement of a curve: for keys and fingers, which uPlot does not listen to.
    point(figure, place) {
      const plot = this.plots.get(figure);
      if (!plot) return;
      const at = plot.data[0][Math.max(0, Math.min(plot.data[0].length - 1, place))];
      plot.setCursor({ left: plot.valToPos(at, "x"), top: 0 });
    }

    listen(figure) {
      const held = figure.querySelector("[data-curve-plot]");
      const here = () => this.plots.get(figure);
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
      held.addEventListener("keydown", (event) => {
        const plot = here();
        if (!plot || !(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
        event.preventDefault();
        const last = plot.data[0].length - 1;
        this.point(figure, (plot.cursor.idx ?? last) + steps[event.key]);
      });
      held.addEventListener("focus", () => { if (held.matches(":focus-visible") && here()) this.point(figure, here().data[0].length - 1); });
      held.addEventListener("blur", () => here()?.setCursor({ left: -10, top: -10 }));
      const touch = (event) => {
        const plot = here();
        if (!plot || event.pointerType === "mouse") return;
        this.point(figure, plot.posToIdx(event.clientX - plot.over.getBoundingClientRect().left));
      };
      held.addEventListener("pointerdown", touch);
      held.addEventListener("pointermove", touch);
    }

    // The data with nothing where nothing was measured, so that no line bridges it.
    gaps(values) {
      const longest = 2.5 * this.answer.seconds;
      const data = [[], ...values.map(() => [])];
      this.answer.at.forEach((at, place) => {
        const before = data[0][data[0].length - 1];
        if (before !== undefined && at - before > longest) data.forEach((one, column) => one.push(column ? null : before + 1));
        data.forEach((one, column) => one.push(column ? values[column - 1][place] : at));
      });
      return data;
    }

    range() {
      return [Date.parse(this.answer.since) / 1000, Date.parse(this.answer.until) / 1000];
    }

    legend(list, lines, series) {
      const made = lines.map((one, place) => {
        const item = element("li");
        const space = "http://www.w3.org/2000/svg";
        const sign = document.createElementNS(space, "svg");
        const line = document.createElementNS(space, "line");
        const given = { x1: 0, x2: 24, y1: 2, y2: 2, stroke: series[place].stroke, "stroke-width": 2, "stroke-dasharray": series[place].dash.join(" ") };
        for (const [key, value] of Object.entries(given)) line.setAttribute(key, value);
        sign.setAttribute("viewBox", "0 0 24 4");
        sign.append(line);
        item.append(sign, one.label);
        return item;
      });
      list.replaceChildren(...(lines.length > 1 ? made : []));
    }

    fit() {
      for (const [figure, plot] of this.plots) {
        const width = figure.querySelector("[data-curve-plot]").clientWidth;
        if (width && width !== plot.width) plot.setSize({ width, height: HEIGHT });
      }
    }
  }

  const begin = (root) => {
    for (const section of root.querySelectorAll("[data-curves]:not([data-curves-begun])")) {
      section.setAttribute("data-curves-begun", "");
      new Curves(section);
    }
  };
  begin(document);
  document.addEventListener("htmx:load", (event) => begin(event.target.parentElement || document));
})();
