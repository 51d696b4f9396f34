//! Metrics of the process, under the names that the client libraries of Prometheus use. A system without `/proc` has none.

use super::definitions as metric;
use super::text::MetricsText;

/// Writes what `/proc` says about this process.
pub(super) fn write(text: &mut MetricsText) {
    let (Ok(stat), Ok(system)) =
        (std::fs::read_to_string("/proc/self/stat"), std::fs::read_to_string("/proc/stat"))
    else {
        return;
    };
    let booted = system.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
    let (Some(process), Some(booted)) = (ProcessStat::read(&stat), booted) else { return };
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let started: f64 = booted;
    let cpu = process.cpu_ticks as f64 / ticks;
    text.value(&metric::PROCESS_CPU, cpu);
    let resident = process.resident_pages.saturating_mul(rustix::param::page_size() as u64);
    text.value(&metric::PROCESS_RESIDENT, resident);
    text.value(&metric::PROCESS_VIRTUAL, process.virtual_bytes);
    text.value(&metric::PROCESS_THREADS, process.threads);
    text.value(&metric::PROCESS_START, started + process.started_ticks as f64 / ticks);
}

/// Fields of `/proc/self/stat`; proc(5) numbers them.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    cpu_ticks: u64,
    threads: u64,
    started_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcessStat {
    fn read(text: &str) -> Option<Self> {
        // The name of the program is in parentheses and may itself contain some.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            started_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_found_behind_any_name() {
        let text = "42 (a) b (c)) S 1 1 1 0 -1 4194304 10 0 0 0 700 300 0 0 20 0 9 0 123456 1048576 512 18446744073709551615";
        let expected = ProcessStat {
            cpu_ticks: 1_000,
            threads: 9,
            started_ticks: 123_456,
            virtual_bytes: 1_048_576,
            resident_pages: 512,
        };
        assert_eq!(ProcessStat::read(text), Some(expected));
        assert_eq!(ProcessStat::read("42 (x) S 1"), None);
    }
}
