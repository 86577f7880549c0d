// Actions: first the kubectl line, then, if wanted, its execution with the rights of whoever looks.
//
// An open dialog is part of the address, so that an action can be proposed with a link. A link opens it and does nothing else.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { sentence } from "./format";
import { act, type ActionRequest, type Session } from "./api";
import { type Place, setOptions } from "./place";

interface ActionProps {
  session: Session;
  place: Place;
  label: string;
  request: ActionRequest;
  /** Whether an end and a reason can be given. */
  timed?: boolean;
}

const HOURS = [1, 2, 8, 24, 72];
const LONGEST_REASON = 200;

const textOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

export function ActionButton(props: ActionProps): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const [line, setLine] = useState("");
  const [outcome, setOutcome] = useState("");
  const { options } = props.place;
  const key = `${props.request.action}:${props.request.target}`;
  const isAsked = options.get("do") === key;
  const given = options.get("for") ?? "";
  const hours = isAsked && HOURS.map(String).includes(given) ? given : props.request.action === "wake" ? "2" : "";
  const reason = isAsked && props.timed ? (options.get("because") ?? "").slice(0, LONGEST_REASON) : "";
  const request = (chosenHours: string, why: string): ActionRequest => ({
    ...props.request,
    ...(chosenHours ? { hours: Number(chosenHours) } : {}),
    ...(why ? { reason: why } : {}),
  });
  useEffect(() => {
    if (isAsked && !dialog.current?.open) dialog.current?.showModal();
    if (!isAsked) dialog.current?.close();
  }, [isAsked]);
  useEffect(() => {
    if (!isAsked) return;
    // An answer that comes after the next question was asked is that of another command.
    let current = true;
    setOutcome("");
    act(request(hours, reason), false).then(
      (answer) => current && setLine(answer.kubectl),
      (error: unknown) => current && setOutcome(textOf(error)),
    );
    return () => {
      current = false;
    };
  }, [isAsked, key, hours, reason]);
  const open = () => setOptions(props.place, { do: key, for: "", because: "" });
  const closed = () => isAsked && setOptions(props.place, { do: "", for: "", because: "" });
  const confirm = async () => {
    setOutcome("Working…");
    try {
      await act(request(hours, reason), true);
      setOutcome("Done.");
    } catch (error) {
      setOutcome(textOf(error));
    }
  };
  const title = props.label;
  return (
    <>
      <button type="button" onClick={open}>{props.label}</button>
      <dialog ref={dialog} aria-label={title} onClose={closed}>
        <h2>{title}</h2>
        {props.timed && (
          <div class="bar">
            <label>
              For{" "}
              <select
                value={hours}
                onChange={(event) => setOptions(props.place, { for: event.currentTarget.value })}
              >
                {props.request.action !== "wake" && <option value="">no end</option>}
                {HOURS.map((count) => <option value={String(count)}>{count} h</option>)}
              </select>
            </label>
            <label>
              Reason{" "}
              <input
                value={reason}
                maxLength={LONGEST_REASON}
                onInput={(event) => setOptions(props.place, { because: event.currentTarget.value })}
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
        <p class="hint">The address of this page opens this dialog for others, too. It does nothing by itself.</p>
        {props.session.inaction && <p class="hint">{sentence(props.session.inaction)}</p>}
      </dialog>
    </>
  );
}
