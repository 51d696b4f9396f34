//! Every metric of a server: name, kind, labels and help. `/metrics` writes them by this list, and the dashboard, the alerts and the
//! list of `semel metrics` are made from it.

use std::fmt;

/// How a metric is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Durations in buckets.
    Histogram,
}

/// A metric. Displayed as its name, so that expressions are made of definitions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricKind,
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl MetricKind {
    /// Its name in the format of Prometheus.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Defines a constant for each metric, and the list of all.
macro_rules! metrics {
    ($($id:ident $kind:ident $name:literal [$($label:literal),*] $help:literal)*) => {
        $(pub(crate) const $id: Metric = Metric {
            name: $name,
            kind: MetricKind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// All metrics.
        pub(crate) const METRICS: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    EVENTS Counter "semel_events_total" ["event"] "Signals of the engine."
    REPLAY_RATIO Gauge "semel_replay_ratio" [] "Share of calls that were answered from the record."
    IN_FLIGHT Gauge "semel_in_flight" [] "Claims held by this process."
    WAITERS Gauge "semel_waiters" [] "Callers waiting for an effect."
    IN_DOUBT_KEYS Gauge "semel_in_doubt_keys" [] "Keys in doubt at the last count."
    EFFECT_SECONDS Histogram "semel_effect_seconds" [] "Time from the claim until the outcome was stored."
    WAIT_SECONDS Histogram "semel_wait_seconds" [] "Time that callers waited for an effect."
    CLAIMS Counter "semel_claims_total" ["status"] "Answers of the claims API."

    STORE_UP Gauge "semel_store_up" [] "1 if the last claim round trip succeeded."
    STORE_AVAILABLE Gauge "semel_store_available" ["store"] "0 during an outage of this store."
    OUTAGES Counter "semel_outages_total" ["store"] "Outages of this store."
    OUTAGE_SECONDS Counter "semel_outage_seconds_total" ["store"] "Length of all outages of this store."
    STORE_LOST_DATA Gauge "semel_store_lost_data" [] "1 if the Redis server has lost data."
    STORE_BYTES Gauge "semel_store_bytes" [] "Size of the store at the last measurement."
    STORE_MAX_BYTES Gauge "semel_store_max_bytes" [] "Maximum size of the store."
    STORE_FULL Gauge "semel_store_full" [] "1 if new keys are refused because the store is full."
    NEW_KEYS_REFUSED Counter "semel_new_keys_refused_total" ["reason"] "New keys refused by a limit of the store."

    REQUESTS Counter "semel_requests_total" ["outcome"] "Answers of the gateway, by outcome."
    ROTATED_CREDENTIALS Counter "semel_rotated_credentials_total" []
        "First runs whose key and payload another credential sent before: retries that ran again, if credentials rotate."
    GATEWAY_CALLS Gauge "semel_gateway_calls_in_flight" [] "Guarded calls in progress at upstreams."
    GATEWAY_CALLS_REFUSED Counter "semel_gateway_calls_refused_total" ["limit"]
        "Requests refused by a limit on guarded calls."
    GATEWAY_BYTES Gauge "semel_gateway_request_bytes_buffered" [] "Bytes of request bodies in memory."
    GATEWAY_BODIES_REFUSED Counter "semel_gateway_bodies_refused_total" []
        "Requests refused by the memory limit for bodies."

    ATTEMPTS Counter "semel_deliveries_total" ["target", "class"] "Delivery attempts, by result."
    ATTEMPT_SECONDS Histogram "semel_attempt_seconds" ["target"] "Duration of delivery attempts."
    DELIVERIES Gauge "semel_deliveries" ["target", "state"] "Deliveries in the ledger that have not ended, by state."
    OLDEST_DUE Gauge "semel_deliveries_oldest_due_seconds" [] "Age of the oldest due delivery."
    DELIVERIES_IN_HAND Gauge "semel_deliveries_in_hand" [] "Deliveries in progress in this process."
    DEAD_LETTERS Gauge "semel_dead_letters" ["status"] "Dead letters, by status."
    TARGET_PAUSED Gauge "semel_target_paused" ["target"] "1 if a person paused the target."
    BREAKER_STATE Gauge "semel_breaker_state" ["target", "state"]
        "State of a target's circuit breaker: 1 for the current state."
    BREAKER_OPENED Counter "semel_breaker_opened_total" ["target"] "Times that a target's circuit breaker opened."

    TRIGGER_CLAIMS Counter "semel_trigger_claims_total" ["outcome"]
        "Claims on the keys of triggers, by result; a claim that waited is also counted by its final result."
    TRIGGERS Counter "semel_triggers_total" ["to"] "Triggers, by destination."
    TRIGGER_WAITERS Gauge "semel_trigger_waiters" [] "Triggers waiting for another one with the same key."
    GATE_DECISIONS Counter "semel_gate_decisions_total" ["reason"] "Decisions of the gate, by reason."
    BUFFER_QUEUED Gauge "semel_buffer_queued" [] "Runs waiting in the buffer."
    BUFFER_IN_TRANSIT Gauge "semel_buffer_in_transit" [] "Runs being moved from the buffer to the ledger."
    BUFFER_OLDEST Gauge "semel_buffer_oldest_seconds" [] "Age of the oldest buffered run."
    BUFFER_DRAINED Counter "semel_buffer_drained_total" ["outcome"] "Buffered runs, by result."
    BUFFER_LOST_DATA Gauge "semel_buffer_lost_data" []
        "1 if the Redis server of the buffer has lost data: runs that were answered with 202 may be lost."
    RUN_WAITERS Gauge "semel_run_waiters" [] "Callers waiting for a run to end."
    RUN_WAITERS_MAX Gauge "semel_run_waiters_max" [] "Maximum number of callers waiting for runs."
    RUN_WAIT_MAX Gauge "semel_run_wait_max_seconds" [] "Maximum time that a caller may wait for a run."
    RUN_WAITERS_REFUSED Counter "semel_run_waiters_refused_total" []
        "Callers refused because too many were waiting for runs."
    RUN_WAITER_READS Counter "semel_run_waiter_reads_total" [] "Reads of the ledger for callers waiting for a run."
    SOURCE_MESSAGES Counter "semel_source_messages_total" ["stream", "outcome"] "Messages of streams, by result."

    ADMIN_REQUESTS Counter "semel_admin_requests_total" ["class"] "Answers of the admin API."
    CONSOLE_STREAMS Gauge "semel_console_streams" [] "Open pages of the console that follow live updates."
    LOGINS_REFUSED Counter "semel_admin_logins_refused_total" ["reason"]
        "Refused requests to the admin API: no token, a wrong token, or an address that sent too many wrong ones."
    RELOADS Counter "semel_reloads_total" ["result"] "Reloads of the configuration."
    CONNECTIONS_MAX Gauge "semel_connections_max" ["listener"] "Maximum number of open connections of a listener."
    CONNECTIONS_CLOSED Counter "semel_connections_closed_at_limit_total" ["listener"]
        "Connections closed at the connection limit because they waited longest for their client."
    LOG_LINES_DROPPED Counter "semel_log_lines_dropped_total" [] "Log lines dropped because the output was too slow."
    SPANS_DROPPED Counter "semel_spans_dropped_total" [] "Spans dropped because the queue was full."
    BUILD_INFO Gauge "semel_build_info" ["version"] "The version of this binary."

    PROCESS_MAX_FDS Gauge "process_max_fds" [] "Maximum number of open file descriptors."
    PROCESS_OPEN_FDS Gauge "process_open_fds" [] "Number of open file descriptors."
    PROCESS_CPU Counter "process_cpu_seconds_total" [] "CPU time of the process, user and system."
    PROCESS_RESIDENT Gauge "process_resident_memory_bytes" [] "Resident memory of the process."
    PROCESS_VIRTUAL Gauge "process_virtual_memory_bytes" [] "Virtual memory of the process."
    PROCESS_THREADS Gauge "process_threads" [] "Number of threads of the process."
    PROCESS_START Gauge "process_start_time_seconds" [] "Start of the process, in seconds since 1970."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        for metric in METRICS {
            assert_eq!(metric.name.ends_with("_total"), metric.kind == MetricKind::Counter, "{metric}");
            assert!(metric.name.starts_with("semel_") || metric.name.starts_with("process_"), "{metric}");
            assert!(metric.help.ends_with('.') && !metric.help.contains('\n'), "{metric}");
        }
        let mut names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len(), "no name is used twice");
    }
}
