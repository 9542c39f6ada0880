// Bring the figures of explorables to life, on prose pages and in notebooks' outputs.
// A figure carries its state; `allRanks.NAME`, from another script, shows it.

class Model { // the part of anywidget's model that an explorable uses
  constructor(state) {
    this.values = { ...state, initial: state, measured: null, live: false };
    this.listeners = {};
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
  save_changes() {}
}

for (const figure of document.querySelectorAll("figure.explorable[data-explorable]")) {
  const still = figure.querySelector(".explorable-still"), el = document.createElement("div");
  try {
    const model = new Model(JSON.parse(figure.dataset.state));
    allRanks[figure.dataset.explorable].render({ model, el });
    still.replaceWith(el);
  } catch (error) {
    console.error(`explorable ${figure.dataset.explorable}:`, error); // the picture stays
  }
}
