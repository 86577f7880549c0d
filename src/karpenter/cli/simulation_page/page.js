"use strict";
(() => {
  const COLORS = ["#2f81f7", "#e5534b", "#3fb950", "#a371f7", "#db6d28", "#00b5ad", "#d4a72c", "#bf3989"];
  const percent = (value) => (value === null ? "" : Math.round(value * 100) + " %");
  const CHARTS = [
    { title: "Cost per hour (USD)", key: "usdPerHour", bound: "lowerBoundUsdPerHour" },
    { title: "Nodes", key: "nodes" },
    { title: "Pods", key: "pods" },
    { title: "Pods that wait for a node", key: "waitingPods" },
    { title: "CPU requested", key: "cpuRequested", format: percent },
    { title: "Memory requested", key: "memoryRequested", format: percent },
  ];
  const reports = JSON.parse(document.getElementById("data").textContent).reports;
  const shown = reports.filter((report) => report.seed === reports[0].seed);
  const longest = shown.reduce((a, b) => (b.timeline.length > a.timeline.length ? b : a));
  const hours = longest.timeline.map((sample) => sample.hours);
  const column = (report, key) => hours.map((_, at) => (at < report.timeline.length ? report.timeline[at][key] : null));
  const parent = document.getElementById("charts");
  let plots = [];

  const lines = (chart) => {
    const own = shown.map((report, at) => ({
      label: report.policy, color: COLORS[at % COLORS.length], values: column(report, chart.key),
    }));
    const bound = { label: "lower bound", dash: [6, 4], values: chart.bound ? column(longest, chart.bound) : [] };
    return chart.bound ? [...own, bound] : own;
  };

  const draw = (chart) => {
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue("--text").trim();
    const axis = { stroke: text, grid: { stroke: style.getPropertyValue("--grid").trim(), width: 1 } };
    const value = (_, number) => (number === null ? "" : chart.format ? chart.format(number) : String(number));
    const ticks = chart.format ? { values: (_, numbers) => numbers.map(chart.format) } : {};
    const own = lines(chart);
    const options = {
      title: chart.title,
      width: Math.max(320, parent.clientWidth),
      height: 260,
      scales: { x: { time: false }, y: { range: (_, least, most) => [0, most > 0 ? most * 1.05 : 1] } },
      axes: [{ ...axis, label: "hours" }, { ...axis, ...ticks }],
      series: [
        { label: "hours" },
        ...own.map((line) => ({ label: line.label, stroke: line.color || text, width: 1.5, dash: line.dash, value })),
      ],
    };
    const place = document.createElement("div");
    place.className = "chart";
    parent.append(place);
    return new uPlot(options, [hours, ...own.map((line) => line.values)], place);
  };

  const redraw = () => {
    plots.forEach((plot) => plot.destroy());
    parent.replaceChildren();
    plots = CHARTS.map(draw);
  };

  redraw();
  window.addEventListener("resize", redraw);
  window.addEventListener("beforeprint", redraw);
  window.addEventListener("afterprint", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
