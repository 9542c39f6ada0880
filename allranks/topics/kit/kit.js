// The kit of the explorables, in parts; bundle.py joins them in this order.
export * from "./elements.js";
export * from "./kernel.js";
export * from "./drag.js";
export * from "./controls.js";
export * from "./motion.js";
export * from "./share.js";
export * from "./ask.js";
export * from "./shell.js";
