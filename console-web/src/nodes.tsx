// The node map and the page of one node.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ActionButton } from "./actions";
import { askText, type NodeRow, type Session, type View } from "./api";
import { cores, dollars, grouped, percent, plural } from "./format";
import { Meter, Panel, Table, useAnswer } from "./parts";
import { link, type Place, setOptions } from "./place";

const GROUPINGS: Record<string, (node: NodeRow) => string> = {
  pool: (node) => node.pool || "(no NodePool)",
  zone: (node) => node.zone || "(no zone)",
  type: (node) => node.type || "(type unknown)",
};
const GOING = ["disrupting", "terminating"];
/** Pixels of the edge of a box with one core; the area grows with the cores. */
const EDGE_OF_A_CORE = 17;

/** Step of the colour scale: 0 is empty, 5 is full. */
const step = (share: number): number => Math.max(0, Math.min(5, Math.ceil(share * 5)));

function Box(props: { node: NodeRow }): JSX.Element {
  const { node } = props;
  const edge = Math.max(24, Math.min(150, EDGE_OF_A_CORE * Math.sqrt(node.cpuMillis / 1000)));
  const text = `${node.name}: ${node.type || "type unknown"}, ${node.state}, ${cores(node.cpuMillis)} CPU, ${percent(node.cpu)} requested, memory ${percent(node.memory)}, ${plural(node.pods, "pod")}, ${dollars(node.price)} per hour`;
  const mark = GOING.includes(node.state) ? " going" : node.cpuMillis === 0 || node.state === "launching" || node.state === "launched" ? " coming" : "";
  return <a class={`box fill-${step(node.cpu)}${mark}`} href={link("node", node.name)} title={text} aria-label={text} data-node={node.name} style={{ width: `${edge}px`, height: `${edge}px` }} />;
}

export function NodeMap(props: { view: View; place: Place }): JSX.Element {
  const grouping = props.place.options.get("group") ?? "pool";
  const groupOf = GROUPINGS[grouping] ?? GROUPINGS.pool!;
  const groups = grouped(props.view.nodes, groupOf);
  return (
    <div>
      <div class="bar">
        <label>
          Group by{" "}
          <select value={grouping} onChange={(event) => setOptions(props.place, { group: event.currentTarget.value })}>
            <option value="pool">NodePool</option>
            <option value="zone">zone</option>
            <option value="type">instance type</option>
          </select>
        </label>
        <span class="legend" aria-hidden="true">
          CPU requested: 0 %{[0, 1, 2, 3, 4, 5].map((at) => <span class={`swatch fill-${at}`} />)}100 %
          <span class="swatch fill-0 coming" /> not there yet <span class="swatch fill-3 going" /> on its way out
        </span>
      </div>
      {groups.size === 0 && <p class="hint">No nodes.</p>}
      {[...groups].sort().map(([name, nodes]) => (
        <div class="group">
          <h3>
            {name} <span class="hint">{plural(nodes.length, "node")}, {dollars(nodes.reduce((sum, node) => sum + (node.price ?? 0), 0), 2)}/h</span>
          </h3>
          <div class="boxes">
            {nodes.map((node) => (
              <Box key={node.name} node={node} />
            ))}
          </div>
        </div>
      ))}
    </div>
  );
}

export function NodesPage(props: { view: View; place: Place }): JSX.Element {
  return (
    <>
      <Panel title="Node map" id="map" wide>
        <p class="hint">A box is a node: its area stands for its CPU, its colour for how much of it pods request. Choose one to explain it.</p>
        <NodeMap view={props.view} place={props.place} />
      </Panel>
      <Panel title="Nodes" id="nodes" wide>
        <Table
          id="nodes"
          label="nodes"
          filter
          place={props.place}
          rows={props.view.nodes}
          rowKey={(node) => node.name}
          empty="No nodes."
          columns={[
            { title: "name", value: (node) => node.name, cell: (node) => <a href={link("node", node.name)}>{node.name}</a>, long: true },
            { title: "NodePool", value: (node) => node.pool },
            { title: "type", value: (node) => node.type },
            { title: "zone", value: (node) => node.zone },
            { title: "capacity type", value: (node) => node.capacityType },
            { title: "state", value: (node) => node.state + (node.why ? `: ${node.why}` : ""), long: true },
            { title: "CPU %", value: (node) => Math.round(node.cpu * 100) },
            { title: "memory %", value: (node) => Math.round(node.memory * 100) },
            { title: "pods", value: (node) => node.pods },
            { title: "$/h", value: (node) => node.price, cell: (node) => dollars(node.price) },
            { title: "held by", value: (node) => node.heldBy.join("; "), long: true },
          ]}
        />
      </Panel>
    </>
  );
}

export function NodePage(props: { view: View; session: Session; place: Place; name: string }): JSX.Element {
  const node = props.view.nodes.find((row) => row.name === props.name);
  const [asked, setAsked] = useState(0);
  const explained = useAnswer(`${props.name} ${asked}`, () => askText(`api/explanation?subject=node/${encodeURIComponent(props.name)}`));
  return (
    <Panel title={`Node ${props.name}`} id="node" wide>
      {node === undefined ? (
        <p class="hint">This node is not there (any more).</p>
      ) : (
        <>
          <dl class="facts">
            <div><dt>NodePool</dt><dd>{node.pool || "none"}</dd></div>
            <div><dt>Type</dt><dd>{node.type || "unknown"}{node.capacityType && `, ${node.capacityType}`}</dd></div>
            <div><dt>Zone</dt><dd>{node.zone || "unknown"}</dd></div>
            <div><dt>State</dt><dd>{node.state}{node.why && `: ${node.why}`}</dd></div>
            <div><dt>Price</dt><dd>{dollars(node.price)} per hour</dd></div>
            <div><dt>Pods</dt><dd>{node.pods}</dd></div>
            <div><dt>CPU requested</dt><dd>{percent(node.cpu)} of {cores(node.cpuMillis)}<Meter share={node.cpu} label="CPU requested" /></dd></div>
            <div><dt>Memory requested</dt><dd>{percent(node.memory)}<Meter share={node.memory} label="Memory requested" /></dd></div>
          </dl>
          {node.heldBy.length > 0 && (
            <>
              <h3>What holds it</h3>
              <ul>{node.heldBy.map((why) => <li>{why}</li>)}</ul>
            </>
          )}
          <div class="bar">
            {node.kept ? (
              <ActionButton session={props.session} place={props.place} label={`Release node ${node.name}`} request={{ action: "release-node", target: node.name }} />
            ) : (
              <ActionButton session={props.session} place={props.place} label={`Keep node ${node.name}`} request={{ action: "keep-node", target: node.name }} />
            )}
            <a class="button" href={link("what-if", "", { drain: node.name })}>What if it were drained?</a>
          </div>
        </>
      )}
      <h3>Explanation</h3>
      <pre id="explanation" tabindex={0} aria-label="Explanation" aria-busy={explained.answer === undefined && !explained.fault}>{explained.answer ?? (explained.fault || "Computing…")}</pre>
      <button type="button" onClick={() => setAsked(asked + 1)}>Compute again</button>
    </Panel>
  );
}
