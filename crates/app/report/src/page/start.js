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
