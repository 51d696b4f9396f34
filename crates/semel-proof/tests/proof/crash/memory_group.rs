//! A group of processes that the system kills when they use too much memory.

use std::path::PathBuf;

/// A memory cgroup (version 1 or 2) with a limit; gone when dropped.
pub(super) struct MemoryGroup {
    path: PathBuf,
    version: Version,
}

#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
}

impl MemoryGroup {
    pub(super) fn of_bytes(limit: usize) -> Option<Self> {
        let roots = [("/sys/fs/cgroup/memory", Version::One), ("/sys/fs/cgroup", Version::Two)];
        roots.into_iter().find_map(|(root, version)| {
            let path = PathBuf::from(root).join(format!("semel-proof-{:016x}", rand::random::<u64>()));
            std::fs::create_dir(&path).ok()?;
            // Dropped, and so removed, if it cannot be used.
            let group = Self { path, version };
            let (file, swap) = match version {
                Version::One => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
                Version::Two => ("memory.max", "memory.swap.max"),
            };
            let set = |file: &str, value: usize| std::fs::write(group.path.join(file), value.to_string());
            set(file, limit).ok()?;
            // Where swap is not counted there is no such file, and hardly any swap.
            let _ = set(
                swap,
                match version {
                    Version::One => limit,
                    Version::Two => 0,
                },
            );
            std::fs::read(group.path.join("cgroup.procs")).ok()?;
            Some(group)
        })
    }

    /// Has a shell enter the group and become the victim, so that it is inside from its first page on.
    pub(super) fn around(&self, command: &mut std::process::Command) {
        let mut inside = std::process::Command::new("/bin/sh");
        inside.arg("-c").arg("echo $$ > \"$0\" && exec \"$@\"").arg(self.path.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        inside.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        *command = inside;
    }

    /// How often the system killed here.
    pub(super) fn kills(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = std::fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The last process has been reaped; the kernel may need a moment to notice.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::yield_now();
        }
    }
}
