// The pieces that pages are made of. Text from the cluster only ever becomes text nodes and attributes, never markup.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { percent } from "./format";
import { type Place, setOptions } from "./place";

export function Panel(props: { title: string; id: string; wide?: boolean; children: ComponentChildren }): JSX.Element {
  return (
    <section class={props.wide ? "panel wide" : "panel"} aria-labelledby={`h-${props.id}`}>
      <h2 id={`h-${props.id}`}>{props.title}</h2>
      {props.children}
    </section>
  );
}

export function Figure(props: { title: string; value: string; id: string; share?: number; hint?: string }): JSX.Element {
  return (
    <div class="figure" data-figure={props.id}>
      <dt>{props.title}</dt>
      <dd class="value">{props.value}</dd>
      {props.share !== undefined && (
        <dd>
          <Meter share={props.share} label={props.title} />
        </dd>
      )}
      {props.hint && <dd class="hint">{props.hint}</dd>}
    </div>
  );
}

export function Meter(props: { share: number; label: string }): JSX.Element {
  return (
    <div class="meter" role="meter" aria-label={props.label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.min(100, Math.round(props.share * 100))} aria-valuetext={percent(props.share)}>
      <span style={{ width: `${Math.min(1, props.share) * 100}%` }} />
    </div>
  );
}

export interface Column<Row> {
  title: string;
  /** What the column is sorted by; numbers stand to the right. */
  value: (row: Row) => string | number | null;
  /** What it shows, if not the value. */
  cell?: (row: Row) => ComponentChildren;
  /** Whether its text may be long, and breaks into lines. */
  long?: boolean;
}

interface TableProps<Row> {
  id: string;
  label: string;
  place: Place;
  columns: Column<Row>[];
  rows: Row[];
  rowKey: (row: Row) => string;
  empty: string;
  /** Without it there is no field to filter by. */
  filter?: boolean;
}

/** A table that can be sorted by its titles and filtered by words; both are part of the address. */
export function Table<Row>(props: TableProps<Row>): JSX.Element {
  const { columns, place, id } = props;
  const words = place.options.get(`${id}-find`) ?? "";
  const order = place.options.get(`${id}-by`) ?? "";
  const rows = useMemo(() => sorted(matching(props.rows, columns, words), columns, order), [props.rows, words, order]);
  const isNumeric = columns.map((column) => props.rows.some((row) => typeof column.value(row) === "number"));
  return (
    <div>
      {props.filter && props.rows.length > 0 && (
        <label class="filter">
          <span>Filter {props.label}</span>
          <input type="search" value={words} onInput={(event) => setOptions(place, { [`${id}-find`]: event.currentTarget.value })} />
          <span class="hint" role="status">
            {words ? `${rows.length} of ${props.rows.length}` : ""}
          </span>
        </label>
      )}
      {rows.length === 0 ? (
        <p class="hint">{props.rows.length ? "Nothing has all of these words." : props.empty}</p>
      ) : (
        <div class="scroll" tabindex={0} role="region" aria-label={`Table: ${props.label}`}>
          <table id={id}>
            <thead>
              <tr>
                {columns.map((column, at) => (
                  <th scope="col" class={isNumeric[at] ? "number" : ""} aria-sort={sortState(order, column.title)}>
                    <button type="button" onClick={() => setOptions(place, { [`${id}-by`]: nextOrder(order, column.title) })}>
                      {column.title}
                      <span aria-hidden="true">{order === column.title ? " ▲" : order === `-${column.title}` ? " ▼" : ""}</span>
                    </button>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={props.rowKey(row)}>
                  {columns.map((column, at) => (
                    <td class={isNumeric[at] ? "number" : column.long ? "long" : ""}>
                      {column.cell ? column.cell(row) : (column.value(row) ?? "–")}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}

function matching<Row>(rows: Row[], columns: Column<Row>[], words: string): Row[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (wanted.length === 0) return rows;
  return rows.filter((row) => {
    const text = columns.map((column) => column.value(row)).join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

function sorted<Row>(rows: Row[], columns: Column<Row>[], order: string): Row[] {
  const column = columns.find((candidate) => candidate.title === order.replace(/^-/, ""));
  if (column === undefined) return rows;
  const sign = order.startsWith("-") ? -1 : 1;
  return [...rows].sort((one, other) => sign * compare(column.value(one), column.value(other)));
}

function compare(one: string | number | null, other: string | number | null): number {
  if (one === null || other === null) return Number(other === null) - Number(one === null);
  return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
}

const nextOrder = (order: string, title: string): string => (order === title ? `-${title}` : order === `-${title}` ? "" : title);

function sortState(order: string, title: string): "ascending" | "descending" | "none" {
  return order === title ? "ascending" : order === `-${title}` ? "descending" : "none";
}

export interface Line {
  title: string;
  color: string;
  values: (number | null)[];
  dashed?: boolean;
}

/** How uPlot writes moments, for steps of at least so many seconds: the first line, and what a second one adds on another day. */
const DAY_LINE = "\n{YYYY}-{MM}-{DD}";
const TIMES: (string | number | null)[][] = [
  [86_400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", DAY_LINE, null, DAY_LINE, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", DAY_LINE, null, DAY_LINE, null, null, null, 1],
];
/** The least distance of two labels: the longest is 2026-01-01. */
const TIME_LABEL_PIXELS = 80;

/** Lines over time. The label says in words what the picture shows. */
export function TimeChart(props: { label: string; times: number[]; lines: Line[]; unit: string }): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const dark = useDark();
  useEffect(() => {
    if (frame.current === null) return;
    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(name).trim();
    const axis: uPlot.Axis = { stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    const made = new uPlot(
      {
        width: Math.max(200, frame.current.clientWidth),
        height: 180,
        scales: { y: { range: (_, __, most) => [0, Math.max(most * 1.1, 1e-9)] } },
        // All times of the console are in UTC.
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        axes: [{ ...axis, values: TIMES, space: TIME_LABEL_PIXELS }, { ...axis, size: 60, values: (_, ticks) => ticks.map((tick) => `${props.unit}${Number(tick.toPrecision(4))}`) }],
        series: [
          {},
          ...props.lines.map((line) => ({
            label: line.title,
            stroke: color(line.color),
            width: 2,
            spanGaps: true,
            paths: uPlot.paths.stepped!({ align: 1 }),
            points: { show: props.times.length < 2 },
            ...(line.dashed ? { dash: [6, 4] } : {}),
          })),
        ],
        legend: { show: true, live: false },
        cursor: { show: false },
      },
      [props.times, ...props.lines.map((line) => line.values)],
      frame.current,
    );
    chart.current = made;
    const resized = new ResizeObserver(() => {
      if (frame.current !== null) made.setSize({ width: Math.max(200, frame.current.clientWidth), height: 180 });
    });
    resized.observe(frame.current);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [dark, props.lines.length]);
  useEffect(() => chart.current?.setData([props.times, ...props.lines.map((line) => line.values)]), [props.times]);
  return <div class="chart" ref={frame} role="img" aria-label={props.label} />;
}

function useDark(): boolean {
  const [dark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return dark;
}

/** What a request for `key` answers: undefined while it is under way. A new key asks again. */
export function useAnswer<T>(key: string, request: () => Promise<T>, every = 0): { answer?: T; fault: string } {
  const [state, setState] = useState<{ key: string; answer?: T; fault: string }>({ key, fault: "" });
  useEffect(() => {
    let current = true;
    const go = () =>
      request().then(
        (answer) => current && setState({ key, answer, fault: "" }),
        (error: unknown) => current && setState({ key, fault: error instanceof Error ? error.message : String(error) }),
      );
    if (key) void go();
    const timer = key && every ? setInterval(go, every) : undefined;
    return () => {
      current = false;
      clearInterval(timer);
    };
  }, [key]);
  return state.key === key ? state : { fault: "" };
}
