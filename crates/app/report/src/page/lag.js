/* Light to dark, so that it reads without colour too. */
const RAMPS = {
  light: ['#f1efe9', '#fbd98f', '#f29b45', '#d5512f', '#931a3f', '#3f0a35'],
  dark: ['#26262c', '#54224f', '#9c2f54', '#dc5b38', '#f6a83f', '#fdf2b8'],
};
const scheme = matchMedia('(prefers-color-scheme: dark)');
const palette = () => {
  const stops = RAMPS[scheme.matches && !printing ? 'dark' : 'light']
    .map(colour => [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16)));
  return Uint32Array.from({ length: 256 }, (_, at) => {
    const place = at / 255 * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(place));
    const [r, g, b] = stops[low].map((c, i) => Math.round(c + (stops[low + 1][i] - c) * (place - low)));
    return new Uint32Array(new Uint8Array([r, g, b, 255]).buffer)[0];
  });
};

/* Ranks that are still easy to tell apart. */
const LATEST = 24;
const ABSENT = -1;
/* A grey that shows on light and dark. */
const HATCH = 0xff8c9090;
const lagPlot = (() => {
  const panel = document.getElementById('lag');
  if (!panel) return null;
  const host = part(panel, '.plot', HTMLElement), ranks = series.ranks, rows = ranks.length;
  const select = part(panel, '[name=stage]', HTMLSelectElement), view = part(panel, '[name=order]', HTMLSelectElement);
  const first = verdict.incidents.find(incident => incident.subject.stage);
  let largest = 0;
  verdict.stages.forEach((stage, at) => {
    select.append(new Option(stage.name, String(at)));
    if (stage.advance_s > verdict.stages[largest].advance_s) largest = at;
  });
  const named = verdict.stages.findIndex(stage => first && stage.name === first.subject.stage);
  select.value = String(named < 0 ? largest : named);
  view.append(new Option('all ranks', 'all'), new Option(LATEST + ' latest ranks', 'latest'));
  if (view.parentElement) view.parentElement.hidden = rows < 2 * LATEST;
  for (const given of ['.choice', '.scale']) part(panel, given, HTMLElement).hidden = false;

  const { digits, floor_s, decades, codes } = series.lag_code;
  const values = new Uint8Array(128);
  /** @type {Map<number, Float32Array>} */
  const lags = new Map();
  for (let at = 0; at < digits.length; at++) values[digits.charCodeAt(at)] = at;
  /** @type {(text: string, at: number) => number} */
  const codeOf = (text, at) => values[text.charCodeAt(at)] + 64 * values[text.charCodeAt(at + 1)];
  const seconds = Float32Array.from({ length: codes + 1 }, (_, code) => floor_s * 10 ** ((code - 1) * decades / (codes - 1)));
  /** @type {(stage: number) => Float32Array} */
  const decode = stage => {
    const text = series.stages[stage].lag || '', found = new Float32Array(rows * columns);
    for (let from = 0, at = 0; from < text.length; from += 2) {
      const code = codeOf(text, from);
      /* A zero stands for as many as the next two digits say. */
      if (code) found[at++] = seconds[code]; else at += codeOf(text, from += 2);
    }
    for (const { row, first_column, last_column } of series.absences) {
      found.fill(ABSENT, row * columns + first_column, row * columns + last_column + 1);
    }
    return found;
  };
  /** @type {(stage: number) => Float32Array} */
  const lag = stage => {
    const found = lags.get(stage) || decode(stage);
    lags.set(stage, found);
    return found;
  };
  /* The top of the scale: what nearly all columns stay below, but at least a fifth of a step,
     so that the jitter of a healthy job stays pale. */
  /** @type {(cells: Float32Array) => number} */
  const topOf = cells => {
    const worst = Float32Array.from({ length: columns }, (_, column) => {
      let most = 0;
      for (let row = 0; row < rows; row++) most = Math.max(most, cells[row * columns + column]);
      return most;
    }).sort();
    return Math.max(worst[Math.floor((columns - 1) * 0.95)], 0.2 * verdict.job.exposed_s / Math.max(1, verdict.job.analysed_steps), 1e-6);
  };
  /** @type {(row: number, height: number) => number} */
  const rowEdge = (row, height) => Math.round(row / order.length * height);
  const blamed = () => {
    const name = verdict.stages[+select.value].name;
    /** @type {[number, string][]} */
    const found = [];
    for (const incident of verdict.incidents) if (incident.subject.stage === name) {
      for (const rank of incident.subject.ranks) found.push([rank, incident.severity]);
    }
    return found;
  };
  /* Rows of the series in the order they are drawn in. */
  /** @type {(cells: Float32Array) => number[]} */
  const orderOf = cells => {
    const all = ranks.map((_, row) => row);
    if (view.value === 'all') return all;
    const late = all.map(row => series.steps.reduce((sum, steps, column) => sum + steps * Math.max(0, cells[row * columns + column]), 0));
    return all.sort((a, b) => late[b] - late[a]).slice(0, LATEST);
  };
  /** @type {SVGSVGElement} */
  let root;
  /** @type {SVGLineElement} */
  let cursor;
  /** @type {SVGRectElement} */
  let outline;
  /** @type {Area} */
  let area;
  /** @type {Float32Array} */
  let cells;
  /** @type {number[]} */
  let order;

  /** @type {(canvas: HTMLCanvasElement, top: number) => void} */
  const paint = (canvas, top) => {
    const ratio = Math.min(3, devicePixelRatio || 1), colours = palette();
    canvas.width = Math.round(area.width * ratio);
    canvas.height = Math.round(area.height * ratio);
    for (const [side, pixels] of Object.entries(area)) canvas.style.setProperty(side, pixels + 'px');
    const picture = new ImageData(canvas.width, canvas.height), pixels = new Uint32Array(picture.data.buffer);
    const across = bins(canvas.width), rows = order.length, gap = area.height / rows >= 10 ? Math.round(ratio) : 0;
    /** @type {(row: number, end: number, y0: number, y1: number) => void} */
    const band = (row, end, y0, y1) => {
      for (const [from, to, x0, x1] of across) {
        let most = ABSENT;
        for (let at = row; at < end; at++) for (let column = from; column < to; column++) most = Math.max(most, cells[order[at] * columns + column]);
        if (most === ABSENT) {
          for (let y = y0; y < y1; y++) for (let x = x0; x < x1; x++) {
            pixels[y * canvas.width + x] = (x + y) / ratio % 6 < 1.5 ? HATCH : colours[0];
          }
          continue;
        }
        const colour = colours[Math.round(clamp(most / top, 0, 1) * 255)];
        for (let y = y0; y < y1; y++) pixels.fill(colour, y * canvas.width + x0, y * canvas.width + x1);
      }
    };
    for (let row = 0; row < rows;) {
      /* Ranks that share a pixel: the latest is drawn. */
      let end = row + 1;
      const y0 = rowEdge(row, canvas.height);
      while (end < rows && rowEdge(end, canvas.height) <= y0) end++;
      band(row, end, y0, Math.max(y0 + 1, rowEdge(end, canvas.height) - gap));
      row = end;
    }
    /* Few ranks of an incident among very many would be hairlines. */
    const thick = Math.round(4 * ratio), named = blamed();
    if (canvas.height / rows < thick && named.length * 2 * thick < canvas.height) {
      for (const [rank] of named) {
        const row = order.indexOf(ranks.indexOf(rank));
        if (row < 0) continue;
        const y0 = clamp(rowEdge(row + 0.5, canvas.height) - thick / 2, 0, canvas.height - thick);
        band(row, row + 1, Math.floor(y0), Math.floor(y0) + thick);
      }
    }
    canvas.getContext('2d')?.putImageData(picture, 0, 0);
    const scale = part(panel, '.scale canvas', HTMLCanvasElement), line = new ImageData(256, 1);
    new Uint32Array(line.data.buffer).set(colours);
    scale.getContext('2d')?.putImageData(line, 0, 0);
    /** @type {NodeListOf<HTMLElement>} */
    const ends = panel.querySelectorAll('.scale span');
    ends[0].textContent = 'with the others';
    ends[1].textContent = duration(top) + ' late or more';
    ends[2].hidden = !series.absences.length;
  };
  const rankAxis = () => {
    const rows = order.length, size = area.height / rows;
    /** @type {number[]} */
    const taken = [];
    /** @type {(row: number, text: string, kind: string) => void} */
    const write = (row, text, kind) => {
      const y = area.top + (row + 0.5) * size;
      if (taken.some(other => Math.abs(other - y) < 13)) return;
      taken.push(y);
      svg('text', { class: kind, x: area.left - 8, y: y + 4, 'text-anchor': 'end' }, root, text);
    };
    for (const [rank, severity] of blamed()) {
      const row = order.indexOf(ranks.indexOf(rank));
      if (row >= 0) write(row, 'rank ' + rank, 'named mark ' + severity);
    }
    const step = Math.max(1, nice(rows, area.height / (view.value === 'all' ? 18 : 13)));
    for (let row = 0; row < rows; row += step) write(row, (row || taken.length ? '' : 'rank ') + ranks[order[row]], '');
  };
  const draw = () => {
    cells = lag(+select.value);
    order = orderOf(cells);
    const shown = order.length, height = clamp(shown * (shown <= LATEST ? 30 - Math.max(0, shown - 8) : 12), 70, 540);
    area = { left: 64, top: 2, width: Math.max(120, widthOf(host) - 72), height: Math.max(height, Math.min(shown, 600)) };
    root = svg('svg', { height: area.top + area.height + 24 });
    const canvas = tagged('canvas');
    paint(canvas, topOf(cells));
    rankAxis();
    timeAxis(root, area.left, area.top, area.width, area.height);
    outline = svg('rect', { class: 'cell', visibility: 'hidden' }, root);
    cursor = svg('line', { class: 'cursor', y1: area.top, y2: area.top + area.height, visibility: 'hidden' }, root);
    host.replaceChildren(canvas, root);
  };
  for (const choice of [select, view]) choice.addEventListener('change', draw);
  /** @type {(at: Place) => number} */
  const middle = at => area.left + (until[at.column] + series.steps[at.column] / 2) / total * area.width;
  /** @type {Plot} */
  const plot = {
    host, draw,
    locate(x, y) {
      if (x < area.left - 4 || x > area.left + area.width + 8) return null;
      const row = clamp(Math.floor((y - area.top) / area.height * order.length), 0, order.length - 1);
      return { column: columnAt((x - area.left) / area.width), row };
    },
    rows: () => order.length,
    centre: at => [middle(at), area.top + rowEdge(at.row, area.height)],
    point(at, own) {
      this.at = own ? at : null;
      cursor.setAttribute('visibility', at && !own ? 'visible' : 'hidden');
      outline.setAttribute('visibility', at && own ? 'visible' : 'hidden');
      if (!at) return;
      for (const end of ['x1', 'x2']) cursor.setAttribute(end, String(Math.round(middle(at)) + 0.5));
      const x = edge(at.column, area.width), y = rowEdge(at.row, area.height);
      const size = { x: area.left + x, y: area.top + y, width: edge(at.column + 1, area.width) - x, height: rowEdge(at.row + 1, area.height) - y };
      size.width = Math.max(3, size.width);
      size.height = Math.max(3, size.height);
      for (const [name, pixels] of Object.entries(size)) outline.setAttribute(name, String(pixels));
    },
    tell(at) {
      const late = cells[order[at.row] * columns + at.column];
      const mean = series.steps[at.column] > 1 ? 'mean lag ' : 'lag ';
      return [
        tagged('h4', 'rank ' + ranks[order[at.row]] + ', ' + stepsText(at.column)),
        tagged('p', late === ABSENT ? 'delivered nothing' : late ? mean + duration(late) : 'not behind the median rank'),
      ];
    },
  };
  return plot;
})();
if (lagPlot) plots.push(lagPlot);
