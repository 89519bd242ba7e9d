// Figures over time as lines, and as a table for people who do not see the lines.

import { html, useEffect, useRef } from "../html.js";
import uPlot from "../vendor/uPlot.js";
import { NOTHING } from "../lib/format.js";

/**
 * @typedef {{label: string, color: string, values: (number | null)[]}} Line `color` is the name of a CSS property, as
 *   `--chart-1`
 * @typedef {{title: string, times: number[], lines: Line[], show: (value: number | null) => string}} ChartProps
 *   `times` are Unix seconds
 */

const HEIGHT = 180;

/** @param {ChartProps} props */
export function Chart({ title, times, lines, show }) {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {uPlot | null} */ (null));
  const names = lines.map((line) => `${line.label} ${line.color}`).join();
  const data = /** @type {uPlot.AlignedData} */ ([times, ...lines.map((line) => line.values)]);
  const newest = useRef(data);
  newest.current = data;

  useEffect(() => {
    const element = place.current;
    if (element === null) return undefined;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(optionsFor(element, lines, show), newest.current, element);
    };
    draw();
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    sized.observe(element);
    const forget = onThemeChange(draw);
    return () => {
      forget();
      sized.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names]);
  useEffect(() => plot.current?.setData(data), [data]);

  return html`<figure class="chart">
    <figcaption>
      ${title}
      <span class="legend">
        ${lines.map((line) => html`<span><i style=${{ background: `var(${line.color})` }} />${line.label}</span>`)}
      </span>
    </figcaption>
    <div ref=${place} class="plot" aria-hidden="true" />
    <${AsTable} title=${title} times=${times} lines=${lines} show=${show} />
  </figure>`;
}

/** @param {ChartProps} props */
function AsTable({ title, times, lines, show }) {
  return html`<details>
    <summary>${title} as a table</summary>
    <div class="scroll" tabindex="0" role="group" aria-label=${`${title}, table`}>
      <table>
        <thead>
          <tr>
            <th scope="col">Time</th>
            ${lines.map((line) => html`<th scope="col" class="figure">${line.label}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${times.map(
            (time, row) => html`<tr>
              <th scope="row">${clock(time)}</th>
              ${lines.map((line) => html`<td class="figure">${show(line.values[row] ?? null)}</td>`)}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </details>`;
}

/**
 * @param {HTMLElement} element
 * @param {Line[]} lines
 * @param {(value: number | null) => string} show
 * @returns {uPlot.Options}
 */
function optionsFor(element, lines, show) {
  const style = getComputedStyle(element);
  const color = (/** @type {string} */ name) => style.getPropertyValue(name).trim() || style.color;
  const axis = {
    stroke: style.color,
    grid: { stroke: color("--chart-grid"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  return {
    width: element.clientWidth || 320,
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (_plot, _lowest, highest) => [0, Math.max(1, (highest ?? 0) * 1.1)] } },
    axes: [
      { ...axis, values: (_plot, moments) => moments.map(clock) },
      { ...axis, size: 64, values: (_plot, values) => values.map((value) => (value === null ? NOTHING : show(value))) },
    ],
    series: [
      {},
      ...lines.map((line) => ({
        label: line.label,
        stroke: color(line.color),
        width: 2,
        points: { show: true, size: 5, filter: alone },
        spanGaps: false,
      })),
    ],
  };
}

/**
 * The places of values without a neighbour. No line leads to such a value, so it becomes a dot.
 * @param {uPlot} plot
 * @param {number} line
 */
function alone(plot, line) {
  const values = plot.data[line];
  const isThere = (/** @type {number} */ place) => (values[place] ?? null) !== null;
  return [...values.keys()].filter((place) => isThere(place) && !isThere(place - 1) && !isThere(place + 1));
}

/** @param {number} seconds */
function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
}

/**
 * Calls back when the page turns dark or light, by the system's setting or by the switch, because a canvas does not follow.
 * @param {() => void} act
 */
function onThemeChange(act) {
  const wish = matchMedia("(prefers-color-scheme: dark)");
  const chosen = new MutationObserver(act);
  wish.addEventListener("change", act);
  chosen.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
  return () => {
    wish.removeEventListener("change", act);
    chosen.disconnect();
  };
}
