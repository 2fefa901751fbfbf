const tip = part(document, '#tip', HTMLElement);
/* Aborted when this script runs anew over newer content. */
const over = new AbortController(), { signal } = over;
document.addEventListener('again', () => over.abort(), { signal });
/** @type {Plot[]} */
const plots = [];
const hide = () => {
  tip.hidden = true;
  for (const plot of plots) plot.point(null);
};
/** @type {(plot: Plot, at: Place, x: number, y: number) => void} */
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
/** @param {Plot} plot */
const listen = plot => {
  const host = plot.host;
  /** @type {(event: PointerEvent) => void} */
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
/** @type {(root: Element, left: number, top: number, width: number, height: number) => void} */
const timeAxis = (root, left, top, width, height) => {
  const every = Math.max(1, nice(total, width / 80));
  /** @type {(step: string | number, done: number, anchor: string) => number} */
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
