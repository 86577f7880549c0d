// Questions about a copy of the cluster. The question is the address, so it can be shared.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ActionButton } from "./actions";
import { ask, type Session, type View, type WhatIfAnswer } from "./api";
import { dollars, perMonth, plural, signed } from "./format";
import { Panel, Table, useAnswer } from "./parts";
import { link, type Place } from "./place";

const ASKED = ["drain", "forbid", "pods", "cpu", "memory"];

/** The question that the address asks; empty without one. */
export function questionOf({ options }: Place): string {
  return new URLSearchParams(ASKED.flatMap((name) => (options.get(name) ? [[name, options.get(name)!]] : []))).toString();
}

export function WhatIfPage(props: { view: View; session: Session; place: Place }): JSX.Element {
  const { options } = props.place;
  const question = questionOf(props.place);
  const answer = useAnswer(question, () => ask<WhatIfAnswer>(`api/what-if?${question}`));
  const families = [...new Set(props.view.nodes.map((node) => node.type.split(".")[0] ?? "").filter(Boolean))].sort();
  const [node, setNode] = useState(options.get("drain") ?? "");
  const [family, setFamily] = useState(options.get("forbid") ?? families[0] ?? "");
  const [pods, setPods] = useState({ pods: options.get("pods") ?? "10", cpu: options.get("cpu") ?? "500m", memory: options.get("memory") ?? "1Gi" });
  const go = (asked: Record<string, string>) => (event: Event) => {
    event.preventDefault();
    location.hash = link("what-if", "", asked);
  };
  return (
    <>
      <Panel title="What if" id="what-if" wide>
        <p class="hint">The same decision that the controller makes, on a copy. Nothing is changed.</p>
        <div class="questions">
          <form onSubmit={go({ drain: node })}>
            <h3>Drain a node</h3>
            <label>Node <input list="node-names" value={node} required onInput={(event) => setNode(event.currentTarget.value)} /></label>
            <datalist id="node-names">{props.view.nodes.map((row) => <option value={row.name} />)}</datalist>
            <button class="primary" type="submit">Drain a copy</button>
          </form>
          <form onSubmit={go(pods)}>
            <h3>Add pods</h3>
            <label>Pods <input inputMode="numeric" pattern="[0-9]+" size={5} value={pods.pods} required onInput={(event) => setPods({ ...pods, pods: event.currentTarget.value })} /></label>
            <label>CPU each <input size={6} value={pods.cpu} required onInput={(event) => setPods({ ...pods, cpu: event.currentTarget.value })} /></label>
            <label>Memory each <input size={6} value={pods.memory} required onInput={(event) => setPods({ ...pods, memory: event.currentTarget.value })} /></label>
            <button class="primary" type="submit">Add to a copy</button>
          </form>
          <form onSubmit={go({ forbid: family })}>
            <h3>Forbid an instance family</h3>
            <label>Family <input list="families" value={family} required onInput={(event) => setFamily(event.currentTarget.value)} /></label>
            <datalist id="families">{families.map((name) => <option value={name} />)}</datalist>
            <button class="primary" type="submit">Forbid in a copy</button>
          </form>
        </div>
      </Panel>
      {question && (
        <Panel title="Answer" id="answer" wide>
          <div role="status">
            {answer.fault && <p class="fault">{answer.fault}</p>}
            {!answer.fault && !answer.answer && <p>Computing…</p>}
          </div>
          {answer.answer && <Answer answer={answer.answer} place={props.place} />}
          {answer.answer && <Approval view={props.view} session={props.session} place={props.place} node={options.get("drain") ?? ""} />}
        </Panel>
      )}
    </>
  );
}

/** The plan of a drained node can be approved. Pods and forbidden families belong into manifests. */
function Approval(props: { view: View; session: Session; place: Place; node: string }): JSX.Element | null {
  const claim = props.view.nodes.find((row) => row.name === props.node)?.claim;
  if (!claim) return null;
  return (
    <>
      <div class="bar">
        <ActionButton session={props.session} place={props.place} label={`Approve: drain ${props.node}`} request={{ action: "drain-node", target: claim }} />
      </div>
      <p class="hint">Deletes the NodeClaim. The controller then drains the node, with respect to PodDisruptionBudgets, and decides anew where its pods go.</p>
    </>
  );
}

function Answer(props: { answer: WhatIfAnswer; place: Place }): JSX.Element {
  const { answer } = props;
  return (
    <>
      <p class="verdict">
        <strong data-figure="difference">{signed(answer.difference)} per hour</strong> ({dollars(answer.priceBefore)} → {dollars(answer.priceAfter)}, {answer.difference < 0 ? "−" : "+"}{perMonth(Math.abs(answer.difference))} per month):{" "}
        {plural(answer.removed.length, "node")} {answer.removed.length === 1 ? "goes" : "go"}, {plural(answer.bought.length, "node")} {answer.bought.length === 1 ? "is" : "are"} launched, {plural(answer.moved, "pod")} {answer.moved === 1 ? "goes" : "go"} elsewhere, {plural(answer.waiting, "pod")} {answer.waiting === 1 ? "waits" : "wait"}.
      </p>
      {answer.held > 0 && (
        <p class="fault" id="held">
          {plural(answer.held, "pod")} may not be evicted now, and no place is planned for {answer.held === 1 ? "it" : "them"}. {answer.held === 1 ? "Its node stays" : "Their nodes stay"} and cost money until {answer.held === 1 ? "it is" : "they are"} gone or terminationGracePeriod is over.
        </p>
      )}
      <Flows answer={answer} />
      {answer.holding.length > 0 && (
        <Table
          id="holding"
          label="pods that may not be evicted"
          place={props.place}
          rows={answer.holding}
          rowKey={(row) => row.pod}
          empty=""
          columns={[
            { title: "holds the node", value: (row) => row.pod },
            { title: "node", value: (row) => row.node },
            { title: "why", value: (row) => row.reason },
          ]}
        />
      )}
      {answer.bought.length > 0 && (
        <Table
          id="bought"
          label="nodes that would be launched"
          place={props.place}
          rows={answer.bought}
          rowKey={(row) => row.name}
          empty=""
          columns={[
            { title: "new node", value: (row) => row.name },
            { title: "NodePool", value: (row) => row.pool },
            { title: "type", value: (row) => row.type },
            { title: "zone", value: (row) => row.zone },
            { title: "capacity type", value: (row) => row.capacityType },
            { title: "pods", value: (row) => row.pods },
            { title: "$/h", value: (row) => row.price, cell: (row) => dollars(row.price) },
          ]}
        />
      )}
      {answer.stranded.length > 0 && (
        <Table
          id="stranded"
          label="pods that would wait"
          place={props.place}
          rows={answer.stranded}
          rowKey={(row) => row.pod}
          empty=""
          columns={[
            { title: "would wait", value: (row) => row.pod },
            { title: "why", value: (row) => row.reason },
          ]}
        />
      )}
    </>
  );
}

const ROW = 26;
const MOST = 12;

/** Which pods go from where to where: bands as thick as pods are many. */
function Flows(props: { answer: WhatIfAnswer }): JSX.Element | null {
  const counts = new Map<string, number>();
  for (const move of props.answer.moves) {
    const key = JSON.stringify([move.from || "new pods", move.to]);
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const flows = [...counts].sort((one, other) => other[1] - one[1]).map(([key, count]) => ({ ends: JSON.parse(key) as [string, string], count }));
  if (flows.length === 0) return null;
  const from = [...new Set(flows.map((flow) => flow.ends[0]))].slice(0, MOST);
  const to = [...new Set(flows.map((flow) => flow.ends[1]))].slice(0, MOST);
  const drawn = flows.filter((flow) => from.includes(flow.ends[0]) && to.includes(flow.ends[1]));
  const most = Math.max(...drawn.map((flow) => flow.count));
  const newNodes = new Map(props.answer.bought.map((node) => [node.name, node.type]));
  const height = Math.max(from.length, to.length) * ROW + 8;
  const middle = (names: string[], name: string) => ((names.indexOf(name) + 0.5) * height) / names.length;
  const shown = (name: string) => (name.length > 34 ? `${name.slice(0, 33)}…` : name);
  const described = drawn.map((flow) => `${flow.count} from ${flow.ends[0]} to ${flow.ends[1]}`).join("; ");
  return (
    <div class="scroll" tabindex={0} role="region" aria-label="pods that move">
      <svg class="flows" viewBox={`0 0 900 ${height}`} role="img" aria-label={`Pods that move: ${described}`}>
        {drawn.map((flow) => {
          const [y1, y2] = [middle(from, flow.ends[0]), middle(to, flow.ends[1])];
          return <path class="flow" d={`M300 ${y1} C450 ${y1} 450 ${y2} 600 ${y2}`} stroke-width={Math.max(2, (14 * flow.count) / most)} />;
        })}
        {from.map((name) => <text x={290} y={middle(from, name) + 4} text-anchor="end">{shown(name)}</text>)}
        {to.map((name) => <text x={610} y={middle(to, name) + 4}>{shown(name)}{newNodes.has(name) ? ` (new, ${newNodes.get(name)})` : ""}</text>)}
      </svg>
      {flows.length > drawn.length && <p class="hint">The largest flows are drawn, {flows.length - drawn.length} are not.</p>}
    </div>
  );
}
