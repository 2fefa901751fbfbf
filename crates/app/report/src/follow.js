(() => {
'use strict';
/* The newer page is parsed, never run: only this page's own scripts are. */
const EVERY_MS = 2000;
/** @type {(text: string) => void} */
const sign = text => {
  const live = document.getElementById('live');
  if (!live) return;
  live.hidden = false;
  live.textContent = text;
};
const byId = ['verdict', 'series'];
/** @type {() => [string, string][]} */
const chosen = () => {
  /** @type {NodeListOf<HTMLSelectElement | HTMLInputElement>} */
  const fields = document.querySelectorAll('select, input:checked');
  return [...fields].map(field => [field.name, field.value]);
};
/** @type {(fields: [string, string][]) => void} */
const choose = fields => {
  for (const [name, value] of fields) {
    /** @type {HTMLSelectElement | null} */
    const select = document.querySelector(`select[name="${name}"]`);
    /** @type {HTMLInputElement | null} */
    const radio = document.querySelector(`input[name="${name}"][value="${value}"]`);
    if (select && select.value !== value) {
      select.value = value;
      select.dispatchEvent(new Event('change'));
    }
    if (radio && !radio.checked) {
      radio.checked = true;
      radio.dispatchEvent(new Event('change', { bubbles: true }));
    }
  }
};
const unfolded = () => [...document.querySelectorAll('details')].map(fold => fold.open);
const AWAY = 'the server does not answer';
let last = '', busy = false, stale = false, shown = 0;
const update = async () => {
  if (busy || document.hidden) { stale = true; return; }
  busy = true;
  stale = false;
  try {
    const answer = await fetch(location.href, { cache: 'no-store', redirect: 'manual' });
    /* Another collector keeps the job now: only a page of its own may ask it. */
    if (answer.type === 'opaqueredirect') { location.reload(); return; }
    if (!answer.ok) throw new Error(String(answer.status));
    const text = await answer.text();
    state = told;
    if (text === last) return;
    last = text;
    const newer = new DOMParser().parseFromString(text, 'text/html');
    const fields = chosen(), folds = unfolded(), top = scrollY;
    document.dispatchEvent(new Event('again'));
    for (const part of ['header.top', 'main', 'footer']) {
      const from = newer.querySelector(part);
      if (from) document.querySelector(part)?.replaceWith(document.adoptNode(from));
    }
    for (const id of byId) {
      const [ours, theirs] = [document, newer].map(page => page.getElementById(id));
      if (!ours || !theirs) throw new Error('there is no ' + id);
      ours.textContent = theirs.textContent;
    }
    const script = document.getElementById('draw'), again = document.createElement('script');
    again.id = 'draw';
    again.textContent = script && script.textContent;
    script?.replaceWith(again);
    const now = document.querySelectorAll('details');
    if (now.length === folds.length) now.forEach((fold, at) => { fold.open = folds[at]; });
    choose(fields);
    scrollTo(0, top);
  } catch {
    state = AWAY;
    stale = true;
  } finally {
    busy = false;
    shown = Date.now();
    sign(state);
    if (stale) later();
  }
};
let timer = 0, told = 'live', state = told;
const later = () => {
  clearTimeout(timer);
  timer = setTimeout(update, Math.max(0, shown + EVERY_MS - Date.now()));
};
/** @type {EventSource} */
let source;
const listen = () => {
  source = new EventSource(location.pathname.replace(/\/jobs\/([^/]*)(\/incidents\/[^/]*)?$/, '/api/v1/jobs/$1/events'));
  source.addEventListener('verdict', event => {
    told = JSON.parse(event.data).state === 'ended' ? 'ended' : 'live';
    later();
  });
  source.addEventListener('error', () => {
    state = AWAY;
    sign(state);
    /* Refused, or led elsewhere: browsers do not try that again. */
    if (source.readyState === EventSource.CLOSED) { later(); setTimeout(listen, EVERY_MS); }
  });
  source.addEventListener('open', () => { state = told; sign(state); });
};
listen();
/* Perfetto takes a trace from the page that opened it, once it answers; nothing is uploaded. */
document.addEventListener('click', async event => {
  /** @type {HTMLAnchorElement | null} */
  const link = event.target instanceof Element ? event.target.closest('a[data-trace]') : null;
  /** @type {HTMLAnchorElement | null} */
  const given = document.querySelector('.trace a[download]');
  if (!link || !given) return;
  event.preventDefault();
  const there = open(link.href), origin = new URL(link.href).origin;
  const answer = await fetch(given.href);
  if (!there || !answer.ok) { sign('the trace cannot be shown'); return; }
  const buffer = await answer.arrayBuffer();
  const knocking = setInterval(() => there.postMessage('PING', origin), 100);
  /** @type {(event: MessageEvent) => void} */
  const hear = event => {
    if (event.source !== there || event.origin !== origin || event.data !== 'PONG') return;
    clearInterval(knocking);
    removeEventListener('message', hear);
    there.postMessage({ perfetto: { buffer, title: document.title } }, origin);
  };
  addEventListener('message', hear);
});
document.addEventListener('visibilitychange', () => { if (stale) later(); });
})();
