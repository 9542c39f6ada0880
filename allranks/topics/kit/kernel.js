// What a figure in a notebook has to know of its kernel.

export const LOST = "The kernel of this figure was restarted or shut down, so run the cell above "
  + "again; everything but this button works without it.";
export const BUSY = "waiting for the kernel: it is busy, and runs this as soon as it can …";

// Tell whether nothing can reach the Python behind a model any more. anywidget shows no
// comm, but the layout's lives and ends with it: a restart marks it dead, a crash drops
// it from the kernel, and after a shutdown there is no kernel. A host that shows none of
// this is believed, and so is a kernel that is slow.
export function isLost(model) {
  const layout = model.get("layout"), manager = model.widget_manager;
  if (layout?.comm_live === false) return true;
  if (!layout?.model_id || !manager || !("kernel" in manager)) return false;
  const { kernel } = manager;
  return !kernel || kernel.isDisposed || kernel.hasComm?.(layout.model_id) === false;
}

// JupyterLab saves a figure's view, but not its model, and then finds none when the
// notebook is opened again. So save with the notebook all models that its outputs show,
// also those whose kernel has ended since.
const STATE = "application/vnd.jupyter.widget-state+json", seen = new WeakMap();
export function keepModels(manager) {
  const notebook = manager?.context?.model;
  if (!notebook?.setMetadata || !manager.get_state_sync) return; // another host
  const live = () => manager.get_state_sync({ drop_defaults: true });
  const first = !seen.has(manager);
  seen.set(manager, { ...seen.get(manager), ...live().state });
  if (first) manager.context.saveState.connect((_, moment) => {
    if (moment !== "started") return;
    const { state, ...version } = live();
    const before = notebook.getMetadata("widgets")?.[STATE]?.state;
    const all = { ...before, ...seen.get(manager), ...state }, ids = Object.keys(all);
    const named = (what) => ids.filter((id) => what.includes(id));
    const views = named(JSON.stringify(Array.from(notebook.cells, (cell) => cell.outputs?.toJSON())));
    const parts = named(JSON.stringify(views.map((id) => all[id]))); // a figure's layout
    const kept = Object.fromEntries([...views, ...parts].map((id) => [id, all[id]]));
    if (before || views.length) notebook.setMetadata("widgets", { [STATE]: { ...version, state: kept } });
  });
}
