//! The sockets of a config. They are opened at start, and a reload cannot change them.

use std::net::SocketAddr;

use super::Config;
use super::certificate::Certificate;

/// The listeners that a config asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sockets {
    admin: Socket,
    gateway: Option<Socket>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Socket {
    listen: SocketAddr,
    tls: Option<Certificate>,
}

impl Sockets {
    pub(super) fn of(config: &Config) -> Self {
        let gateway = config.gateway.as_ref();
        Self {
            admin: Socket { listen: config.admin.listen, tls: config.admin.tls.clone() },
            gateway: gateway.map(|gateway| Socket { listen: gateway.listen, tls: gateway.tls.clone() }),
        }
    }

    /// Checks that a new config has the same sockets.
    ///
    /// # Errors
    /// Every setting that differs.
    pub(crate) fn check_same(&self, new: &Self) -> anyhow::Result<()> {
        let mut changed = self.admin.changes("admin", &new.admin);
        match (&self.gateway, &new.gateway) {
            (Some(old), Some(new)) => changed.extend(old.changes("gateway", new)),
            (None, None) => {}
            _ => changed.push("adding or removing a gateway requires a restart".to_owned()),
        }
        if changed.is_empty() { Ok(()) } else { anyhow::bail!(changed.join("\n")) }
    }
}

impl Socket {
    fn changes(&self, table: &str, new: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        if self.listen != new.listen {
            changes.push(format!(
                "[{table}] listen: changing {} to {} requires a restart; the socket stays where it is",
                self.listen, new.listen
            ));
        }
        if self.tls != new.tls {
            changes.push(format!(
                "[{table}] tls: adding, removing or renaming its files requires a restart; a reload reads the same \
                 files again"
            ));
        }
        changes
    }
}
