// What a teacher takes along: a link to this very picture, or the picture as a file.
import { h } from "./elements.js";

const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity",
  "font-family", "font-size", "font-weight", "text-anchor", "visibility"];

// Return an SVG as text that looks the same anywhere, on the ground of its page.
function standalone(svg) {
  const copy = svg.cloneNode(true), { width, height } = svg.viewBox.baseVal;
  const parts = [svg, ...svg.querySelectorAll("*")], twins = [copy, ...copy.querySelectorAll("*")];
  parts.forEach((part, i) => {
    const style = getComputedStyle(part);
    for (const name of ["class", "style", "tabindex", "role"]) twins[i].removeAttribute(name);
    for (const name of LOOKS) twins[i].style.setProperty(name, style.getPropertyValue(name));
  });
  const ground = h("svg:rect", { width, height });
  ground.style.fill = getComputedStyle(svg.closest(".x")).backgroundColor;
  copy.prepend(ground);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return new XMLSerializer().serializeToString(copy);
}

async function png(svg) {
  const image = new Image(), { width, height } = svg.viewBox.baseVal, scale = 2;
  image.src = `data:image/svg+xml,${encodeURIComponent(standalone(svg))}`;
  await image.decode();
  const canvas = h("canvas", { width: width * scale, height: height * scale });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function download(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Make the menu; `link` is there where a page has an address for the state.
export function sharing(name, stage, link) {
  const said = h("span.x-said", { role: "status" });
  const button = (words, act) => h("button", { type: "button", onclick: async () => {
    said.textContent = "";
    said.textContent = await act();
  } }, words);
  const svg = () => stage.querySelector("svg");
  return h("details.x-share", {}, h("summary", { "aria-label": "Copy or save" }, "⋯"), h("div.x-buttons", {}, [
    link && button("Copy link", async () => {
      try {
        await navigator.clipboard.writeText(link());
        return "Link copied";
      } catch { // no clipboard here
        return "The address of this page is the link.";
      }
    }),
    button("Copy as SVG", async () => {
      const text = standalone(svg());
      try {
        await navigator.clipboard.writeText(text);
        return "SVG copied";
      } catch {
        download(new Blob([text], { type: "image/svg+xml" }), `${name}.svg`);
        return "SVG saved as a file";
      }
    }),
    button("Save as PNG", async () => {
      download(await png(svg()), `${name}.png`);
      return "PNG saved as a file";
    }),
    said,
  ]));
}
