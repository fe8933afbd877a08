import { state, useAsked } from "../api.js";
import { ABOUT_TIME, Chart } from "../chart.jsx";
import { gauge, metrics, past, quantiles, rates, samples, sum, value, withPast } from "../figures.js";
import { byteRate, bytes, count, duration, rate, short } from "../format.js";
import { Head, State, Tile, Waiting } from "../parts.jsx";
import { useStore } from "../stores.js";

const waiting = (depth) => `${short(depth)} ${depth === 1 ? "message" : "messages"} now`;

export function Overview() {
  const all = useStore(samples);
  const older = useStore(past);
  const found = useStore(metrics);
  const health = useAsked("health", 5, state);
  const ready = useAsked("ready", 5, state);
  const newest = all.at(-1);
  const cpu = rates(all, "cpu").at(-1)?.[1] ?? null;
  return (
    <>
      <Head title="Overview" asked={{ at: newest ? new Date(newest.at) : null }} />
      <section aria-label="Broker">
        <Waiting asked={ready} name="The state of the broker" />
        {ready.data && <Parts ready={ready.data} />}
        <dl class="tiles">
          <Tile name="Connections" value={count(value(found, "embermq_connections"))} about="open now" />
          <Tile name="Sessions" value={count(value(found, "embermq_sessions"))} about="of absent clients too, now" />
          <Tile name="Subscriptions" value={count(value(found, "embermq_subscriptions"))} about="now" />
          <Tile name="Retained" value={count(value(found, "embermq_retained_messages"))} about="messages now" />
          <Tile name="Queues" value={count(value(found, "mqtt_queues"))} about={waiting(sum(found, "mqtt_queue_depth") ?? 0)} />
          <Tile name="Memory" value={bytes(value(found, "process_resident_memory_bytes"))} about="resident, now" />
          <Tile name="CPU" value={cpu === null ? "–" : `${Math.round(cpu * 100)} %`} about="of one core, last 3 s" />
          <Tile name="Uptime" value={duration(health.data?.uptime_s)} about={health.data ? `version ${health.data.version}` : ""} />
        </dl>
      </section>
      <section aria-label="Charts">
        <h2>Last minutes</h2>
        <p class="muted">{ABOUT_TIME}</p>
        <div class="charts">
          <Chart
            title="Messages"
            about="PUBLISH packets a second"
            show={rate}
            lines={[
              { name: "received", points: withPast(older, "messages_in_per_s", rates(all, "messages_received_total")) },
              { name: "sent", points: withPast(older, "messages_out_per_s", rates(all, "messages_sent_total")) },
            ]}
          />
          <Chart
            title="Traffic"
            about="bytes a second, all packets"
            show={byteRate}
            floor={1024}
            base={2}
            lines={[
              { name: "received", points: withPast(older, "bytes_in_per_s", rates(all, "bytes_received_total")) },
              { name: "sent", points: withPast(older, "bytes_out_per_s", rates(all, "bytes_sent_total")) },
            ]}
          />
          <Chart
            title="Publish to acknowledgement"
            about="time of QoS 1 and 2 in the broker, over 15 s"
            show={duration}
            floor={0.001}
            lines={[
              { name: "half below", points: withPast(older, "acknowledged_p50_ms", quantiles(all, "acknowledged", 0.5), 1000) },
              { name: "99 % below", points: withPast(older, "acknowledged_p99_ms", quantiles(all, "acknowledged", 0.99), 1000) },
            ]}
          />
          <Chart
            title="Commit"
            about="time for the log to store a tick, over 15 s"
            show={duration}
            floor={0.001}
            lines={[
              { name: "half below", points: withPast(older, "commit_p50_ms", quantiles(all, "commit", 0.5), 1000) },
              { name: "99 % below", points: withPast(older, "commit_p99_ms", quantiles(all, "commit", 0.99), 1000) },
            ]}
          />
          <Chart
            title="Clients"
            about="connections, and sessions with those of absent clients"
            show={count}
            lines={[
              { name: "connections", points: withPast(older, "connections", gauge(all, "connections")) },
              { name: "sessions", points: withPast(older, "sessions", gauge(all, "sessions")) },
            ]}
          />
          <Chart
            title="Queue depth"
            about="messages in durable queues that are not settled"
            show={short}
            lines={[{ name: "messages", points: withPast(older, "queue_depth", gauge(all, "depth")) }]}
          />
          <Chart
            title="Pipeline lag"
            about="records of the log that the slowest query has not handled"
            show={short}
            lines={[
              { name: "slowest query", points: gauge(all, "lag") },
              { name: "slowest reader of the log", points: gauge(all, "reader_behind") },
            ]}
          />
        </div>
      </section>
    </>
  );
}

const Parts = ({ ready }) => (
  <ul class="parts">
    <li>
      <span>clients</span> <State of={ready.ready ? "ok" : "not served"} bad={["not served"]} />
    </li>
    {Object.entries(ready.parts).map(([name, told]) => (
      <li key={name}>
        <span>{name.replaceAll("_", " ")}</span> <State of={told} />
      </li>
    ))}
  </ul>
);
