// The kit of the explorables, in parts; bundle.py joins them in this order.
export * from "./kit/elements.js";
export * from "./kit/kernel.js";
export * from "./kit/drag.js";
export * from "./kit/controls.js";
export * from "./kit/motion.js";
export * from "./kit/share.js";
export * from "./kit/ask.js";
export * from "./kit/shell.js";
