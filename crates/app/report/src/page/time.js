const timePlot = (() => {
  const panel = part(document, '#time', HTMLElement), host = part(panel, '.plot', HTMLElement);
  const modes = part(panel, '.modes', HTMLElement);
  modes.hidden = false;
  /** @type {SVGSVGElement} */
  let root;
  /** @type {SVGLineElement} */
  let cursor;
  /** @type {Area} */
  let area;
  let share = false;
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
      /** @type {(layer: Layer) => number} */
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
  /** @type {(at: Place) => number} */
  const middle = at => area.left + (until[at.column] + series.steps[at.column] / 2) / total * area.width;
  modes.addEventListener('change', event => {
    share = event.target instanceof HTMLInputElement && event.target.value === 'share';
    draw();
  });
  for (const entry of /** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll('.legend li'))) {
    /** @type {(on: boolean) => void} */
    const light = on => {
      root.classList.toggle('fading', on);
      for (const layer of root.querySelectorAll('.layer')) layer.classList.toggle('lit', layer.getAttribute('data-paint') === entry.dataset.paint);
    };
    entry.addEventListener('pointerenter', () => light(true));
    entry.addEventListener('pointerleave', () => light(false));
  }
  /** @type {Plot} */
  const plot = {
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
      if (at) for (const end of ['x1', 'x2']) cursor.setAttribute(end, String(Math.round(middle(at)) + 0.5));
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
  return plot;
})();
plots.push(timePlot);
