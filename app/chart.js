// One chart: plotly.js kept alive between updates, so that zoom, hover and legend survive them.
// Python sends {figure, plotly, height, label, report}; the visible steps go back as "range".

let library = null;

function loadPlotly(url) {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  if (!library) {
    library = new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = url;
      script.onload = () => resolve(window.Plotly);
      script.onerror = () => {
        library = null;
        reject(new Error("plotly.js did not load from " + url));
      };
      document.head.appendChild(script);
    });
  }
  return library;
}

function merged(base, changes) {
  const result = { ...base };
  for (const [key, value] of Object.entries(changes || {})) {
    const nested = value && typeof value === "object" && !Array.isArray(value);
    result[key] = nested ? merged(base[key] || {}, value) : value;
  }
  return result;
}

// A reader may switch between light and dark without a rerun of the page: then the figure still
// has the other theme's colours, which are swapped here one for one.
function inPageColours(state) {
  const dark = getComputedStyle(state.element).colorScheme.includes("dark");
  const from = dark ? state.colours.light : state.colours.dark;
  const to = dark ? state.colours.dark : state.colours.light;
  let text = state.latest;
  if (text.includes(`"paper_bgcolor":"${to[0]}"`)) return text;
  const swap = new Map(from.map((colour, n) => [`"${colour}"`, `"${to[n]}"`]));
  return text.replace(/"(?:#[0-9A-Fa-f]{6}|rgba\([^"]*\))"/g, (colour) => swap.get(colour) || colour);
}

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

function draw(state) {
  const { element, message } = state;
  const width = element.clientWidth;
  if (!width || !state.latest) return;
  state.spec = JSON.parse(inPageColours(state));
  const narrow = width < NARROW;
  const { height: narrowHeight, ...changes } = state.spec.narrow || {};
  const layout = narrow ? merged(state.spec.layout, changes) : { ...state.spec.layout };
  const height = narrow && narrowHeight ? narrowHeight : state.height;
  element.style.height = height + "px";
  layout.width = width;
  layout.height = height;
  state.width = width;
  state.scheme = getComputedStyle(element).colorScheme;
  message.textContent = "";
  window.Plotly.react(element, state.spec.data, layout, CONFIG);
  if (!state.listening) {
    state.listening = true;
    element.on("plotly_relayout", (change) => visibleSteps(state, change));
  }
}

function visibleSteps(state, change) {
  const touched = Object.keys(change || {}).some((key) => key.startsWith("xaxis."));
  if (!state.report || !touched) return;
  clearTimeout(state.timer);
  state.timer = setTimeout(() => {
    const axis = state.element._fullLayout && state.element._fullLayout.xaxis;
    if (!axis) return;
    const whole = Boolean(change["xaxis.autorange"]) || axis.autorange === true;
    const range = whole ? null : [Math.floor(axis.range[0]), Math.ceil(axis.range[1])];
    const known = JSON.stringify(range);
    if (known === state.known) return;
    state.known = known;
    state.setStateValue("range", range);
  }, 250);
}

const states = new WeakMap();

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const element = parentElement.querySelector(".vramscope-chart");
  const message = parentElement.querySelector(".vramscope-chart-message");
  if (!element || !data) return undefined;
  let state = states.get(element);
  if (!state) {
    state = { element, message, known: "null", listening: false };
    states.set(element, state);
    element.style.height = data.height + "px";
    state.observer = new ResizeObserver(() => {
      // A chart in a closed tab has no width until the tab is opened.
      if (window.Plotly && element.clientWidth !== state.width) draw(state);
    });
    state.observer.observe(element);
    state.themes = new MutationObserver(() => {
      const dark = getComputedStyle(element).colorScheme;
      if (window.Plotly && state.width && state.scheme !== dark) draw(state);
    });
    const app = element.closest(".stApp");
    if (app) state.themes.observe(app, { attributes: true, attributeFilter: ["class"] });
  }
  state.setStateValue = setStateValue;
  state.report = data.report;
  state.height = data.height;
  state.colours = data.colours;
  state.latest = data.figure;
  element.setAttribute("aria-label", data.label);
  loadPlotly(data.plotly)
    .then(() => draw(state))
    .catch((error) => {
      message.textContent = "The chart could not be drawn: " + error.message;
    });
  return () => {
    if (element.isConnected) return;
    state.observer.disconnect();
    state.themes.disconnect();
    clearTimeout(state.timer);
    states.delete(element);
    if (window.Plotly) window.Plotly.purge(element);
  };
}
