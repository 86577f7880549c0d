// Actions: first the kubectl line, then, if wanted, its execution with the rights of whoever looks.

import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { sentence } from "./format";
import { act, type ActionRequest, type Session } from "./api";

interface ActionProps {
  session: Session;
  label: string;
  request: ActionRequest;
  /** Whether an end and a reason can be given. */
  timed?: boolean;
}

const HOURS = [1, 2, 8, 24, 72];

export function ActionButton(props: ActionProps): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const [line, setLine] = useState("");
  const [outcome, setOutcome] = useState("");
  const [hours, setHours] = useState(props.request.action === "wake" ? "2" : "");
  const [reason, setReason] = useState("");
  const request = (chosenHours: string, why: string): ActionRequest => ({
    ...props.request,
    ...(chosenHours ? { hours: Number(chosenHours) } : {}),
    ...(why ? { reason: why } : {}),
  });
  const preview = async (chosenHours: string, why: string) => {
    try {
      setLine((await act(request(chosenHours, why), false)).kubectl);
    } catch (error) {
      setOutcome(error instanceof Error ? error.message : String(error));
    }
  };
  const open = () => {
    setOutcome("");
    dialog.current?.showModal();
    void preview(hours, reason);
  };
  const confirm = async () => {
    setOutcome("Working…");
    try {
      await act(request(hours, reason), true);
      setOutcome("Done.");
    } catch (error) {
      setOutcome(error instanceof Error ? error.message : String(error));
    }
  };
  const title = props.label;
  return (
    <>
      <button type="button" onClick={open}>{props.label}</button>
      <dialog ref={dialog} aria-label={title}>
        <h2>{title}</h2>
        {props.timed && (
          <div class="bar">
            <label>
              For{" "}
              <select
                value={hours}
                onChange={(event) => {
                  setHours(event.currentTarget.value);
                  void preview(event.currentTarget.value, reason);
                }}
              >
                {props.request.action !== "wake" && <option value="">no end</option>}
                {HOURS.map((count) => <option value={String(count)}>{count} h</option>)}
              </select>
            </label>
            <label>
              Reason{" "}
              <input
                value={reason}
                maxLength={200}
                onInput={(event) => {
                  setReason(event.currentTarget.value);
                  void preview(hours, event.currentTarget.value);
                }}
              />
            </label>
          </div>
        )}
        <p>This does the same:</p>
        <pre class="command" tabindex={0} aria-label="kubectl command">{line || "…"}</pre>
        <p role="status" class="outcome">{outcome}</p>
        <div class="bar">
          {!props.session.inaction && (
            <button type="button" class="primary" onClick={() => void confirm()} disabled={outcome === "Done." || outcome === "Working…"}>
              {props.label}
            </button>
          )}
          <button type="button" onClick={() => dialog.current?.close()}>Close</button>
        </div>
        {props.session.inaction && <p class="hint">{sentence(props.session.inaction)}</p>}
      </dialog>
    </>
  );
}
