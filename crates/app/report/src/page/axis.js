/* The time axis: analysed steps, one after the other, whatever their numbers. */
const until = [0];
for (const steps of series.steps) until.push(until[until.length - 1] + steps);
const total = until[columns];
/** @type {(part: number) => number} */
const columnAt = part => {
  const step = clamp(part, 0, 1) * total;
  let low = 0, high = columns - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (until[middle + 1] > step) high = middle; else low = middle + 1;
  }
  return low;
};
/** @type {(column: number, width: number) => number} */
const edge = (column, width) => Math.round(until[column] / total * width);
/* Columns that share a pixel are drawn as one: [first, end, left, right]. */
/** @type {(width: number) => Bin[]} */
const bins = width => {
  /** @type {Bin[]} */
  const found = [];
  for (let first = 0; first < columns;) {
    let end = first + 1;
    while (end < columns && edge(end, width) <= edge(first, width)) end++;
    found.push([first, end, edge(first, width), edge(end, width)]);
    first = end;
  }
  return found;
};
/** @type {number[]} */
const restarts = [];
for (let at = 1; at < columns; at++) if (series.first_step[at] < series.first_step[at - 1]) restarts.push(at);
/** @type {(column: number) => string} */
const stepsText = column => {
  const first = series.first_step[column], last = series.last_step[column];
  return first === last ? 'step ' + first : 'steps ' + first + '-' + last;
};
const incidents = verdict.incidents
  .flatMap((incident, at) => {
    const span = series.incidents[at];
    return span ? [{ ...incident, number: at + 1, span }] : [];
  });

/* Layers from the bottom up: stages in schema order, then what shares a colour, then the rest. */
/** @type {Layer[]} */
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
/** @type {(layer: Layer) => number} */
const place = layer => ['sx', 'sr'].indexOf(layer.paint) + 1;
layers.sort((a, b) => place(a) - place(b));
/** @type {(column: number) => number} */
const stepUs = column => layers.reduce((sum, layer) => sum + layer.us[column], 0);
