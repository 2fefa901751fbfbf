(() => {
'use strict';
/* Names reach the page as text only. */
const EVERY_MS = 2000;
const STATES = ['hung', 'slow', 'silent', 'starting', 'unclear', 'healthy', 'ended'];
/** @type {(id: string) => HTMLElement} */
const at = id => {
  const found = document.getElementById(id);
  if (!found) throw new Error('there is no ' + id);
  return found;
};
const find = /** @type {HTMLInputElement} */ (at('find'));
/** @type {<K extends keyof HTMLElementTagNameMap>(tag: K, name: string, text?: string) => HTMLElementTagNameMap[K]} */
const tagged = (tag, name, text) => {
  const element = document.createElement(tag);
  element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
};
/** @type {(number: number, noun: string) => string} */
const count = (number, noun) => number + ' ' + noun + (number === 1 ? '' : 's');
/** @type {(s: number) => string} */
const duration = s => s >= 7200 ? (s / 3600).toFixed(1) + ' h' : s >= 120 ? (s / 60).toFixed(0) + ' min' : s.toFixed(s < 10 ? 1 : 0) + ' s';
/** @type {(s: number) => string} */
const ago = s => s < 5 ? 'now' : duration(Math.round(s)).replace('.0', '') + ' ago';
/** @type {ListedJob[]} */
let jobs = [];
let state = '', fetched = 0;
/** @type {Map<string, HTMLElement>} */
const rows = new Map();
/** @type {(row: HTMLElement, job: ListedJob, now: number) => void} */
const fill = (row, job, now) => {
  const figures = [
    count(job.ranks, 'rank'), count(job.hosts, 'host'), count(job.steps, 'step'),
    duration(job.exposed_s) + ' exposed',
  ];
  if (job.incidents) figures.push(count(job.incidents, 'incident') + (job.state === 'ended' ? '' : ', ' + job.open_incidents + ' open'));
  if (job.silent_hosts.length) figures.push('silent: ' + job.silent_hosts.join(', '));
  if (job.lost_records) figures.push(count(job.lost_records, 'record') + ' lost');
  const list = tagged('span', 'figures');
  list.append(...figures.map(figure => tagged('span', '', figure)));
  const link = row.children[0];
  link.className = job.state;
  link.replaceChildren(
    tagged('span', 'state', job.state), tagged('span', 'name', job.id),
    tagged('span', 'seen', job.last_seen_s ? ago(Math.max(0, now - job.last_seen_s)) : ''),
    tagged('span', 'told', job.headline || ''), list);
};
/** @type {(job: ListedJob) => HTMLElement} */
const rowOf = job => {
  const known = rows.get(job.id);
  if (known) return known;
  const row = document.createElement('li'), link = document.createElement('a');
  link.href = 'jobs/' + encodeURIComponent(job.id);
  row.append(link);
  rows.set(job.id, row);
  return row;
};
const draw = () => {
  const typed = find.value.toLowerCase();
  const shown = jobs.filter(job => (!state || job.state === state)
    && (job.id + ' ' + (job.headline || '')).toLowerCase().includes(typed));
  shown.sort((a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state) || b.last_seen_s - a.last_seen_s || (a.id < b.id ? -1 : 1));
  const now = Date.now() / 1000;
  shown.forEach(job => fill(rowOf(job), job, now));
  const list = shown.map(rowOf), there = [...at('jobs').children];
  /* Moving what does not move would lose the focus. */
  if (list.length !== there.length || list.some((row, place) => row !== there[place])) at('jobs').replaceChildren(...list);
  const trouble = jobs.filter(job => job.state === 'hung' || job.state === 'slow').length;
  const unclear = jobs.some(job => job.state === 'unclear');
  at('headline').textContent = !jobs.length ? 'No job yet' : trouble
    ? trouble + ' of ' + count(jobs.length, 'job') + (trouble === 1 ? ' is' : ' are') + ' held back'
    : count(jobs.length, 'job') + (unclear ? ', none known to be held back' : ', none held back');
  at('headline').className = !jobs.length ? '' : jobs.some(job => job.state === 'hung') ? 'critical' : trouble ? 'warning' : unclear ? '' : 'healthy';
  const none = at('none');
  none.hidden = shown.length > 0;
  none.textContent = jobs.length ? 'No job matches.' : 'Report one to this collector: laggard run --collector ' + location.origin + ' -- torchrun train.py';
  const held = ['', ...STATES].filter(word => !word || jobs.some(job => job.state === word));
  const buttons = [...at('states').querySelectorAll('button')];
  if (buttons.map(button => button.value).join() !== held.join()) {
    at('states').replaceChildren(...held.map(word => {
      const button = tagged('button', '', word || 'all');
      button.value = word;
      button.type = 'button';
      button.addEventListener('click', () => { state = word; draw(); });
      return button;
    }));
  }
  for (const button of at('states').querySelectorAll('button')) button.setAttribute('aria-pressed', String(button.value === state));
};
/** @type {(text: string) => void} */
const sign = text => { at('live').hidden = false; at('live').textContent = text; };
const update = async () => {
  if (!document.hidden && Date.now() - fetched >= EVERY_MS - 100) {
    fetched = Date.now();
    try {
      const answer = await fetch('api/v1/jobs', { cache: 'no-store' });
      if (!answer.ok) throw new Error();
      jobs = (await answer.json()).jobs;
      sign('live');
      draw();
    } catch { sign('the server does not answer'); }
  }
};
find.addEventListener('input', draw);
document.addEventListener('visibilitychange', update);
setInterval(update, EVERY_MS);
update();
})();
