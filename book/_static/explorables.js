// Bring the figures of explorables to life, on prose pages and in notebooks' outputs.
// A figure carries its state; `allRanks.NAME`, from another script, shows it. The page's
// address has what a reader changed: ?buckets.world_size=16 shows exactly this picture.

const LONGEST = 1500; // characters of a value that is no part of an address: a trace

class Model { // the part of anywidget's model that an explorable uses
  constructor(state, name, id) {
    this.values = { ...state, initial: state, measured: null, live: false };
    Object.assign(this, { name, id, listeners: {} });
    this.link = () => `${location.href.split("#")[0]}#${id}`;
  }
  get(name) { return this.values[name]; }
  set(name, value) {
    const same = JSON.stringify(this.values[name]) === JSON.stringify(value);
    this.values[name] = value;
    if (!same) for (const listen of this.listeners[`change:${name}`] ?? []) listen();
  }
  on(event, listen) { (this.listeners[event] ??= []).push(listen); }
  off(event, listen) {
    this.listeners[event] = (this.listeners[event] ?? []).filter((other) => other !== listen);
  }
  save_changes() { // write down what differs from the page's own state
    const url = new URL(location.href);
    for (const [part, first] of Object.entries(this.values.initial)) {
      const key = `${this.name}.${part}`, now = this.values[part];
      const words = typeof now === "string" ? now : JSON.stringify(now);
      if (words === (typeof first === "string" ? first : JSON.stringify(first)) || words.length > LONGEST)
        url.searchParams.delete(key);
      else url.searchParams.set(key, words);
    }
    // Browsers refuse more than 100 changes in 30 seconds; one drag makes as many.
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      try {
        history.replaceState(history.state, "", url);
      } catch { /* this browser keeps the address of a file as it is */ }
    }, 150);
  }
  restore() { // read what the address says, and leave out what is not of the state
    for (const [part, first] of Object.entries(this.values.initial)) {
      const words = new URLSearchParams(location.search).get(`${this.name}.${part}`);
      if (words === null) continue;
      try {
        this.values[part] = typeof first === "string" ? words : JSON.parse(words);
      } catch {
        if (first === null) this.values[part] = words; // a text in place of nothing
      }
    }
  }
}

const count = {};
for (const figure of document.querySelectorAll("figure.explorable[data-explorable]")) {
  const kind = figure.dataset.explorable, number = (count[kind] = (count[kind] ?? 0) + 1);
  const name = number > 1 ? `${kind}${number}` : kind;
  const still = figure.querySelector(".explorable-still"), el = document.createElement("div");
  figure.id ||= `figure-${name}`;
  try {
    const state = JSON.parse(figure.dataset.state);
    still.replaceWith(el); // first, because a drawing needs its width
    let model = new Model(state, name, figure.id);
    model.restore();
    try {
      allRanks[kind].render({ model, el });
    } catch { // an address that says the impossible: show the page's own state
      model = new Model(state, name, figure.id);
      allRanks[kind].render({ model, el });
    }
  } catch (error) {
    console.error(`explorable ${kind}:`, error);
    el.replaceWith(still); // the picture stays
  }
}
if (location.hash.startsWith("#figure-"))
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
