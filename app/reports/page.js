// Unpacks the plotly.js that the page carries, and draws every figure in the reader's colours.
// Nothing is fetched: the page has no other source than itself.

const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const NARROW = 560;
const CONFIG = {
  displaylogo: false,
  showSendToCloud: false,
  showEditInChartStudio: false,
  responsive: false,
  displayModeBar: "hover",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toggleSpikelines"],
  toImageButtonOptions: { format: "png", scale: 2, filename: "vramscope" },
};

async function unpackPlotly() {
  const packed = document.getElementById("plotly").textContent.trim();
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  if (!window.Plotly) throw new Error("this browser did not run it");
}

function merged(base, changes) {
  const result = { ...base };
  for (const [key, value] of Object.entries(changes || {})) {
    const nested = value && typeof value === "object" && !Array.isArray(value);
    result[key] = nested ? merged(base[key] || {}, value) : value;
  }
  return result;
}

function draw(element) {
  const width = element.clientWidth;
  if (!width) return;
  const figure = figures[element.id][dark.matches ? "dark" : "light"];
  const { height: narrowHeight, ...changes } = figure.narrow || {};
  const narrow = width < NARROW;
  const height = (narrow && narrowHeight) || Number(element.dataset.height);
  const layout = { ...merged(figure.layout, narrow ? changes : {}), width, height };
  element.style.height = height + "px";
  window.Plotly.react(element, figure.data, layout, CONFIG);
}

const charts = Array.from(document.querySelectorAll(".chart"));

function drawAll() {
  charts.forEach(draw);
}

unpackPlotly()
  .then(() => {
    drawAll();
    dark.addEventListener("change", drawAll);
    let timer;
    window.addEventListener("resize", () => {
      clearTimeout(timer);
      timer = setTimeout(drawAll, 150);
    });
    document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", drawAll));
    document.documentElement.dataset.charts = "drawn";
  })
  .catch((error) => {
    charts.forEach((element) => {
      element.textContent = "The chart could not be drawn (" + error.message + "); the tables hold its figures.";
    });
  });
