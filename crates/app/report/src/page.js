(() => {
'use strict';
/* Names reach the page as text only: textContent, never markup. */
const read = id => JSON.parse(document.getElementById(id).textContent);
const verdict = read('verdict'), series = read('series');
const columns = series.steps.length;
if (!columns) return;

const SVG = 'http://www.w3.org/2000/svg';
const svg = (tag, attributes, parent, text) => {
  const element = document.createElementNS(SVG, tag);
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
};
const tagged = (tag, text, name) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
};
/* Paper has a width of its own. */
const PAPER = CSS.supports('zoom', '0.8') ? 820 : 660;
let printing = false;
const widthOf = host => printing ? PAPER : host.clientWidth;
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

const duration = s => s >= 100 ? s.toFixed(0) + ' s' : s >= 1 ? s.toFixed(2) + ' s'
  : s >= 1e-3 ? (s * 1e3).toFixed(1) + ' ms' : s >= 1e-6 ? (s * 1e6).toFixed(0) + ' \u00b5s' : '0';
const percent = share => (share * 100).toFixed(0) + ' %';
const nice = (span, most) => {
  const raw = span / Math.max(1, most), ten = 10 ** Math.floor(Math.log10(raw));
  return ten * [1, 2, 5, 10].find(step => step * ten >= raw * 0.999);
};
/* A number of an axis: short, and as exact as its neighbours need. */
const tick = (s, step) => {
  if (!s) return '0';
  const [unit, name] = step >= 0.5 || s >= 10 ? [1, 's'] : [1e3, 'ms'];
  return (s * unit).toFixed(step * unit >= 0.999 ? 0 : step * unit >= 0.0999 ? 1 : 2) + ' ' + name;
};

/* The time axis: analysed steps, one after the other, whatever their numbers. */
const until = [0];
for (const steps of series.steps) until.push(until.at(-1) + steps);
const total = until[columns];
const columnAt = part => {
  const step = clamp(part, 0, 1) * total;
  let low = 0, high = columns - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (until[middle + 1] > step) high = middle; else low = middle + 1;
  }
  return low;
};
const edge = (column, width) => Math.round(until[column] / total * width);
/* Columns that share a pixel are drawn as one: [first, end, left, right]. */
const bins = width => {
  const found = [];
  for (let first = 0; first < columns;) {
    let end = first + 1;
    while (end < columns && edge(end, width) <= edge(first, width)) end++;
    found.push([first, end, edge(first, width), edge(end, width)]);
    first = end;
  }
  return found;
};
const restarts = [];
for (let at = 1; at < columns; at++) if (series.first_step[at] < series.first_step[at - 1]) restarts.push(at);
const stepsText = column => {
  const first = series.first_step[column], last = series.last_step[column];
  return first === last ? 'step ' + first : 'steps ' + first + '-' + last;
};
const incidents = verdict.incidents
  .map((incident, at) => ({ ...incident, number: at + 1, span: series.incidents[at] }))
  .filter(incident => incident.span);

/* Layers from the bottom up: stages in schema order, then what shares a colour, then the rest. */
const layers = [];
series.stages.forEach((stage, at) => {
  const us = stage.step_advance_us;
  const shared = stage.paint === 'sx' && layers.find(layer => layer.paint === 'sx');
  if (shared) {
    shared.us = shared.us.map((sum, column) => sum + us[column]);
    shared.name = ++shared.stages + ' further stages';
  } else {
    layers.push({ paint: stage.paint, name: verdict.stages[at].name, us, stages: 1 });
  }
});
const place = layer => ({ sx: 1, sr: 2 })[layer.paint] || 0;
layers.sort((a, b) => place(a) - place(b));
const stepUs = column => layers.reduce((sum, layer) => sum + layer.us[column], 0);

const tip = document.getElementById('tip');
/* Aborted when this script runs anew over newer content. */
const over = new AbortController(), { signal } = over;
document.addEventListener('again', () => over.abort(), { signal });
const plots = [];
const hide = () => {
  tip.hidden = true;
  for (const plot of plots) plot.point(null);
};
const show = (plot, at, x, y) => {
  for (const other of plots) other.point(at, other === plot);
  tip.replaceChildren(...plot.tell(at));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth - 8 ? x - 16 - box.width : x + 16;
  const top = clamp(y + 14, 8, innerHeight - box.height - 8);
  tip.style.transform = `translate(${clamp(left, 8, innerWidth - box.width - 8)}px, ${top}px)`;
};
/* Pointer and keys over a plot. `locate(x, y)` and `centre(at)` are in the plot's own pixels. */
const listen = plot => {
  const host = plot.host;
  const pointed = event => {
    const box = host.getBoundingClientRect();
    const at = plot.locate(event.clientX - box.left, event.clientY - box.top);
    if (at) show(plot, at, event.clientX, event.clientY); else hide();
  };
  host.addEventListener('pointermove', pointed);
  host.addEventListener('pointerdown', pointed);
  host.addEventListener('pointerleave', hide);
  host.addEventListener('blur', hide);
  host.addEventListener('keydown', event => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === 'Escape') hide();
    if (!move) return;
    event.preventDefault();
    const from = plot.at || { column: move[0] < 0 ? columns : -1, row: 0 };
    const at = {
      column: clamp(from.column + move[0] * (event.shiftKey ? 10 : 1), 0, columns - 1),
      row: clamp(from.row + move[1], 0, plot.rows() - 1),
    };
    const box = host.getBoundingClientRect(), [x, y] = plot.centre(at);
    show(plot, at, box.left + x, box.top + y);
  });
};
const timeAxis = (root, left, top, width, height) => {
  const every = Math.max(1, nice(total, width / 80));
  const write = (step, done, anchor) => {
    const x = left + done / total * width;
    svg('line', { class: 'grid', x1: x, x2: x, y1: top + height, y2: top + height + 4 }, root);
    svg('text', { x, y: top + height + 17, 'text-anchor': anchor }, root, step);
    return x;
  };
  let last = write('step ' + series.first_step[0], 0, 'start') + 36;
  for (let column = 0; column < columns; column++) {
    const step = Math.ceil(series.first_step[column] / every) * every;
    const done = until[column] + step - series.first_step[column], x = left + done / total * width;
    if (step > series.last_step[column] || x - last < 36 || x > left + width - 10) continue;
    last = write(step, done, 'middle');
  }
  for (const column of restarts) {
    const x = left + edge(column, width);
    svg('line', { class: 'restart', x1: x, x2: x, y1: top, y2: top + height }, root);
  }
};

const timePlot = (() => {
  const panel = document.getElementById('time'), host = panel.querySelector('.plot');
  const modes = panel.querySelector('.modes');
  modes.hidden = false;
  let root, cursor, area, share = false;
  const draw = () => {
    const lanes = incidents.slice(0, 6);
    const width = Math.max(120, widthOf(host) - 72), height = widthOf(host) < 500 ? 200 : 250;
    area = { left: 64, top: lanes.length * 11 + 8, width, height };
    root = svg('svg', { height: area.top + height + 24 });
    const right = area.left + width, bottom = area.top + height;
    const heights = series.steps.map((_, column) => stepUs(column) / 1e6);
    /* A few steps far above all others must not flatten them. */
    const sorted = [...heights].sort((a, b) => a - b), usual = sorted[Math.floor((columns - 1) * 0.98)];
    const peak = sorted[columns - 1], cut = peak > 3 * usual && usual > 0;
    const top = share ? 1 : (cut ? 1.6 * usual : 1.04 * peak) || 1e-6;
    const step = share ? 0.25 : nice(top, 5);
    for (let value = 0; value <= top * 1.0001; value += step) {
      const y = Math.round(bottom - value / top * height);
      svg('line', { class: 'grid', x1: area.left, x2: right, y1: y, y2: y }, root);
      svg('text', { x: area.left - 8, y: y + 4, 'text-anchor': 'end' }, root, share ? percent(value) : tick(value, step));
    }
    const paths = layers.map(() => '');
    for (const [first, end, x0, x1] of bins(width)) {
      const steps = until[end] - until[first], gap = x1 - x0 >= 6 ? 1 : 0;
      const mean = layer => {
        let sum = 0;
        for (let column = first; column < end; column++) sum += layer.us[column] * series.steps[column];
        return sum / steps / 1e6;
      };
      const parts = layers.map(mean), all = parts.reduce((a, b) => a + b, 0) || 1;
      let from = 0;
      parts.forEach((part, at) => {
        const to = from + (share ? part / all : part);
        const y0 = bottom - Math.round(Math.min(1, from / top) * height), y1 = bottom - Math.round(Math.min(1, to / top) * height);
        if (y1 < y0) paths[at] += `M${area.left + x0} ${y0}V${y1}H${area.left + x1 - gap}V${y0}z`;
        from = to;
      });
      if (!share && from > top) {
        const x = area.left + (x0 + x1) / 2;
        svg('path', { class: 'grid', d: `M${x - 4} ${area.top + 1}l4 -6l4 6z`, fill: 'currentColor' }, root);
      }
    }
    layers.forEach((layer, at) => svg('path', { class: 'layer ' + layer.paint, 'data-paint': layer.paint, d: paths[at] }, root));
    timeAxis(root, area.left, area.top, width, height);
    lanes.forEach((incident, at) => {
      const from = edge(incident.span.first_column, width), to = edge(incident.span.last_column + 1, width);
      const y = 2 + at * 11, x = area.left + from;
      svg('rect', { class: 'mark ' + incident.severity, x, y, width: Math.max(4, to - from), height: 6, rx: 3 }, root);
      svg('text', { class: 'named ' + incident.severity, x: x - 4, y: y + 7, 'text-anchor': 'end' }, root, incident.number);
      if (from > 3) svg('line', { class: 'since ' + incident.severity, x1: x, x2: x, y1: y + 6, y2: bottom }, root);
    });
    if (cut && !share) svg('text', { x: right, y: area.top + 10, 'text-anchor': 'end' }, root, 'cut off: the highest step took ' + duration(peak));
    cursor = svg('line', { class: 'cursor', y1: area.top, y2: bottom, visibility: 'hidden' }, root);
    host.replaceChildren(root);
  };
  const middle = at => area.left + (until[at.column] + series.steps[at.column] / 2) / total * area.width;
  modes.addEventListener('change', event => { share = event.target.value === 'share'; draw(); });
  for (const entry of panel.querySelectorAll('.legend li')) {
    const light = on => {
      root.classList.toggle('fading', on);
      for (const layer of root.querySelectorAll('.layer')) layer.classList.toggle('lit', layer.dataset.paint === entry.dataset.paint);
    };
    entry.addEventListener('pointerenter', () => light(true));
    entry.addEventListener('pointerleave', () => light(false));
  }
  return {
    host, draw,
    locate(x) {
      if (x < area.left - 8 || x > area.left + area.width + 8) return null;
      return { column: columnAt((x - area.left) / area.width), row: 0 };
    },
    rows: () => 1,
    centre: at => [middle(at), area.top + 20],
    point(at) {
      this.at = at;
      cursor.setAttribute('visibility', at ? 'visible' : 'hidden');
      if (at) for (const end of ['x1', 'x2']) cursor.setAttribute(end, Math.round(middle(at)) + 0.5);
    },
    tell(at) {
      const all = stepUs(at.column), table = tagged('table');
      for (const layer of [...layers].reverse()) {
        const us = layer.us[at.column];
        if (us < all * 1e-3) continue;
        const row = table.insertRow(), swatch = svg('svg', { class: 'swatch', viewBox: '0 0 1 1' }, row.insertCell());
        svg('rect', { class: layer.paint, width: 1, height: 1 }, swatch);
        row.insertCell().textContent = layer.name;
        row.append(tagged('td', duration(us / 1e6), 'n'), tagged('td', percent(us / (all || 1)), 'n'));
      }
      const here = incidents.filter(i => i.span.first_column <= at.column && i.span.last_column >= at.column);
      const told = here.map(i => tagged('p', 'incident ' + i.number + ' (' + i.severity + ')'));
      const unit = series.steps[at.column] > 1 ? ': a step takes ' : ': ';
      return [tagged('h4', stepsText(at.column) + unit + duration(all / 1e6)), table, ...told];
    },
  };
})();
plots.push(timePlot);

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
  const host = panel.querySelector('.plot'), ranks = series.ranks, rows = ranks.length;
  const select = panel.querySelector('[name=stage]'), view = panel.querySelector('[name=order]');
  const first = verdict.incidents.find(incident => incident.subject.stage);
  let largest = 0;
  verdict.stages.forEach((stage, at) => {
    select.append(new Option(stage.name, at));
    if (stage.advance_s > verdict.stages[largest].advance_s) largest = at;
  });
  const named = verdict.stages.findIndex(stage => first && stage.name === first.subject.stage);
  select.value = named < 0 ? largest : named;
  view.append(new Option('all ranks', 'all'), new Option(LATEST + ' latest ranks', 'latest'));
  view.parentElement.hidden = rows < 2 * LATEST;
  for (const part of ['.choice', '.scale']) panel.querySelector(part).hidden = false;

  const { digits, floor_s, decades, codes } = series.lag_code;
  const values = new Uint8Array(128), lags = new Map();
  for (let at = 0; at < digits.length; at++) values[digits.charCodeAt(at)] = at;
  const codeOf = (text, at) => values[text.charCodeAt(at)] + 64 * values[text.charCodeAt(at + 1)];
  const seconds = Float32Array.from({ length: codes + 1 }, (_, code) => floor_s * 10 ** ((code - 1) * decades / (codes - 1)));
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
  const lag = stage => {
    if (!lags.has(stage)) lags.set(stage, decode(stage));
    return lags.get(stage);
  };
  /* The top of the scale: what nearly all columns stay below, but at least a fifth of a step,
     so that the jitter of a healthy job stays pale. */
  const topOf = cells => {
    const worst = Float32Array.from({ length: columns }, (_, column) => {
      let most = 0;
      for (let row = 0; row < rows; row++) most = Math.max(most, cells[row * columns + column]);
      return most;
    }).sort();
    return Math.max(worst[Math.floor((columns - 1) * 0.95)], 0.2 * verdict.job.exposed_s / Math.max(1, verdict.job.analysed_steps), 1e-6);
  };
  const rowEdge = (row, height) => Math.round(row / order.length * height);
  const blamed = () => {
    const name = verdict.stages[select.value].name, found = [];
    for (const incident of verdict.incidents) if (incident.subject.stage === name) {
      for (const rank of incident.subject.ranks) found.push([rank, incident.severity]);
    }
    return found;
  };
  /* Rows of the series in the order they are drawn in. */
  const orderOf = cells => {
    const all = ranks.map((_, row) => row);
    if (view.value === 'all') return all;
    const late = all.map(row => series.steps.reduce((sum, steps, column) => sum + steps * Math.max(0, cells[row * columns + column]), 0));
    return all.sort((a, b) => late[b] - late[a]).slice(0, LATEST);
  };
  let root, cursor, outline, area, cells, order;

  const paint = (canvas, top) => {
    const ratio = Math.min(3, devicePixelRatio || 1), colours = palette();
    canvas.width = Math.round(area.width * ratio);
    canvas.height = Math.round(area.height * ratio);
    for (const side of ['left', 'top', 'width', 'height']) canvas.style[side] = area[side] + 'px';
    const picture = new ImageData(canvas.width, canvas.height), pixels = new Uint32Array(picture.data.buffer);
    const across = bins(canvas.width), rows = order.length, gap = area.height / rows >= 10 ? Math.round(ratio) : 0;
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
    canvas.getContext('2d').putImageData(picture, 0, 0);
    const scale = panel.querySelector('.scale canvas'), line = new ImageData(256, 1);
    new Uint32Array(line.data.buffer).set(colours);
    scale.getContext('2d').putImageData(line, 0, 0);
    const ends = panel.querySelectorAll('.scale span');
    ends[0].textContent = 'with the others';
    ends[1].textContent = duration(top) + ' late or more';
    ends[2].hidden = !series.absences.length;
  };
  const rankAxis = () => {
    const rows = order.length, size = area.height / rows, taken = [];
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
  const middle = at => area.left + (until[at.column] + series.steps[at.column] / 2) / total * area.width;
  return {
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
      for (const end of ['x1', 'x2']) cursor.setAttribute(end, Math.round(middle(at)) + 0.5);
      const x = edge(at.column, area.width), y = rowEdge(at.row, area.height);
      const size = { x: area.left + x, y: area.top + y, width: edge(at.column + 1, area.width) - x, height: rowEdge(at.row + 1, area.height) - y };
      size.width = Math.max(3, size.width);
      size.height = Math.max(3, size.height);
      for (const name in size) outline.setAttribute(name, size[name]);
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
})();
if (lagPlot) plots.push(lagPlot);

const draw = () => { tip.hidden = true; for (const plot of plots) plot.draw(); };
for (const plot of plots) listen(plot);
let width = 0;
new ResizeObserver(() => {
  if (timePlot.host.clientWidth !== width) { width = timePlot.host.clientWidth; draw(); }
}).observe(timePlot.host);
draw();
scheme.addEventListener('change', draw, { signal });
addEventListener('beforeprint', () => {
  for (const fold of document.querySelectorAll('details')) fold.open = true;
  printing = true;
  draw();
}, { signal });
addEventListener('afterprint', () => { printing = false; draw(); }, { signal });
})();
