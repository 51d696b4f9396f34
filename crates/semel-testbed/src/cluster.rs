//! A Redis Cluster: three primaries, each with a replica.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use crate::{
    Error, Redis, Result, Storage,
    redis::{Persistence, RedisOptions, info_field},
    wait::{self, PATIENCE},
};

const SLOTS: u16 = 16_384;
const PRIMARIES: usize = 3;

/// Six Redis servers that form a cluster: nodes 0 to 2 start as primaries, node 3 + n as the replica of node n. A node that is down for
/// a second is failed over.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
    ids: Vec<String>,
}

impl RedisCluster {
    /// Starts the cluster in memory and without persistence, and waits until all nodes report that it is complete.
    ///
    /// # Errors
    /// As [`Redis::start`], and [`Error::Timeout`] if it does not become complete.
    pub fn start() -> Result<Self> {
        Self::start_with(&Redis::options().storage(Storage::Memory).persistence(Persistence::None))
    }

    /// As [`start`](Self::start), with options for all nodes. With TLS they share one certificate, and also use TLS among themselves.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(options: &RedisOptions) -> Result<Self> {
        let mut nodes: Vec<Redis> = Vec::new();
        for _ in 0..2 * PRIMARIES {
            let certificates = nodes.first().and_then(Redis::certificates);
            nodes.push(options.clone().certificates(certificates).start_cluster_node()?);
        }
        let ids = nodes
            .iter()
            .map(|node| Ok(node.tell(&["CLUSTER", "MYID"])?.text()))
            .collect::<Result<Vec<_>>>()?;
        let cluster = Self { nodes, ids };
        cluster.form()?;
        Ok(cluster)
    }

    fn form(&self) -> Result<()> {
        let (ip, port, bus) = meeting_point(&self.nodes[0])?;
        let share = SLOTS.div_ceil(u16::try_from(PRIMARIES).unwrap_or(u16::MAX));
        let mut first = 0;
        for (index, node) in self.nodes.iter().enumerate() {
            // Distinct epochs from the start: otherwise the nodes would need several rounds to agree.
            node.tell(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
            if index < PRIMARIES {
                let last = (first + share).min(SLOTS) - 1;
                node.tell(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
                first = last + 1;
            }
            if index > 0 {
                node.tell(&["CLUSTER", "MEET", &ip, &port, &bus])?;
            }
        }
        self.wait("all nodes know each other", |node| {
            Ok(node
                .tell(&["CLUSTER", "NODES"])?
                .text()
                .lines()
                .filter(|line| !line.contains("handshake"))
                .count()
                == self.nodes.len())
        })?;
        for (index, replica) in self.nodes.iter().enumerate().skip(PRIMARIES) {
            let primary = &self.ids[index - PRIMARIES];
            wait::for_some("the replica accepts its primary", PATIENCE, || {
                Ok(replica.tell(&["CLUSTER", "REPLICATE", primary]).ok())
            })?;
        }
        self.wait_ok()?;
        self.wait("the replicas are in sync", |node| {
            Ok(node.info("role")? == "master" || node.info("master_link_status")? == "up")
        })
    }

    /// The nodes, in the order of their numbers.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// One node, to kill, pause, restart or query it. The numbers stay, whatever the roles become.
    ///
    /// # Panics
    /// If there is no node with that number.
    pub fn node(&self, index: usize) -> &Redis {
        &self.nodes[index]
    }

    /// The addresses of all nodes.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Redis::addr).collect()
    }

    /// Kills a node (SIGKILL).
    ///
    /// # Panics
    /// If there is no node with that number.
    pub fn kill(&self, index: usize) {
        self.nodes[index].kill();
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// As [`Redis::tell`].
    pub fn slot_of(&self, key: &str) -> Result<u16> {
        let reply = self.any()?.tell(&["CLUSTER", "KEYSLOT", key])?.text();
        reply.parse().map_err(|_| Error::Reply { asked: "CLUSTER KEYSLOT".to_owned(), answer: reply })
    }

    /// The number of the running node that serves the slot.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no running node reports that it serves the slot.
    pub fn primary_of(&self, slot: u16) -> Result<usize> {
        wait::for_some(&format!("a node serves slot {slot}"), PATIENCE, || {
            for (index, node) in self.running() {
                let nodes = node.tell(&["CLUSTER", "NODES"])?.text();
                let own = nodes.lines().find(|line| line.contains("myself,master"));
                if own.is_some_and(|line| serves(line, slot)) {
                    return Ok(Some(index));
                }
            }
            Ok(None)
        })
    }

    /// Waits until every running node reports that the cluster is complete, and none lists a killed node as a primary with slots.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn wait_ok(&self) -> Result<()> {
        let running: HashSet<&str> = self.running().map(|(index, _)| self.ids[index].as_str()).collect();
        self.wait("the cluster is complete", |node| {
            let nodes = node.tell(&["CLUSTER", "NODES"])?.text();
            let settled = nodes.lines().filter(|line| line.contains("master") && line.split(' ').count() > 8);
            let settled =
                settled.map(|line| line.split(' ').next().unwrap_or_default()).all(|id| running.contains(id));
            Ok(settled && info_field(&node.tell(&["CLUSTER", "INFO"])?.text(), "cluster_state") == "ok")
        })
    }

    /// Makes a replica take over in agreement with its primary, as for maintenance.
    ///
    /// # Errors
    /// As [`Redis::tell`]; [`Error::Timeout`] if it does not become a primary.
    ///
    /// # Panics
    /// If there is no node with that number.
    pub fn failover_to(&self, replica: usize) -> Result<()> {
        let replica = &self.nodes[replica];
        wait::for_some("the replica is in sync", PATIENCE, || {
            Ok((replica.info("master_link_status")? == "up").then_some(()))
        })?;
        // Redis gives up after five seconds if the two nodes did not agree, so the command is repeated.
        wait::for_some("the replica has taken over", PATIENCE, || {
            replica.tell(&["CLUSTER", "FAILOVER"])?;
            Ok(wait::until("", Duration::from_secs(6), || {
                replica.info("role").is_ok_and(|role| role == "master")
            })
            .ok())
        })?;
        self.wait_ok()
    }

    /// Moves a slot with all its keys to another primary.
    ///
    /// # Errors
    /// As [`Redis::tell`]; [`Error::Timeout`] if the nodes do not agree.
    ///
    /// # Panics
    /// If there is no node with that number.
    pub fn move_slot(&self, slot: u16, to: usize) -> Result<()> {
        self.begin_move(slot, to)?;
        self.finish_move(slot, to)
    }

    /// Begins to move a slot without moving a key: the old primary answers for the keys that it has, and with `ASK` for others.
    ///
    /// # Errors
    /// As [`Redis::tell`].
    ///
    /// # Panics
    /// If there is no node with that number.
    pub fn begin_move(&self, slot: u16, to: usize) -> Result<()> {
        let from = self.primary_of(slot)?;
        let number = slot.to_string();
        self.nodes[to].tell(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &self.ids[from]])?;
        self.nodes[from].tell(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &self.ids[to]]).map(drop)
    }

    /// Moves the keys of a slot whose move has begun, and ends the move: the old primary then answers with `MOVED`.
    ///
    /// # Errors
    /// As [`Redis::tell`]; [`Error::Timeout`] if the nodes do not agree.
    ///
    /// # Panics
    /// If there is no node with that number.
    pub fn finish_move(&self, slot: u16, to: usize) -> Result<()> {
        let from = self.primary_of(slot)?;
        let (number, target) = (slot.to_string(), &self.nodes[to]);
        let port = target.port().to_string();
        let mut source = self.nodes[from].connect()?;
        loop {
            let keys = source.tell(&["CLUSTER", "GETKEYSINSLOT", &number, "100"])?;
            let crate::resp::Reply::Array(keys) = keys else { break };
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let key = key.text();
                let user = crate::redis::HARNESS_USER;
                source.tell(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000", "AUTH2", user, user])?;
            }
        }
        // The new primary first, because it must accept clients that are redirected to it.
        target.tell(&["CLUSTER", "SETSLOT", &number, "NODE", &self.ids[to]])?;
        source.tell(&["CLUSTER", "SETSLOT", &number, "NODE", &self.ids[to]])?;
        self.wait("all nodes know where the slot is", |node| {
            let nodes = node.tell(&["CLUSTER", "NODES"])?.text();
            let line = nodes.lines().find(|line| line.starts_with(&self.ids[to]));
            Ok(line.is_some_and(|line| serves(line, slot)))
        })
    }

    fn running(&self) -> impl Iterator<Item = (usize, &Redis)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.pid().is_ok())
    }

    fn any(&self) -> Result<&Redis> {
        self.running().next().map(|(_, node)| node).ok_or(Error::NotRunning { name: "redis-server" })
    }

    /// Waits until the condition is true for every running node.
    fn wait(&self, what: &str, is: impl Fn(&Redis) -> Result<bool>) -> Result<()> {
        for (index, node) in self.running() {
            wait::for_some(&format!("{what}, says node {index}"), PATIENCE, || Ok(is(node)?.then_some(())))?;
        }
        Ok(())
    }
}

impl RedisOptions {
    fn start_cluster_node(&self) -> Result<Redis> {
        self.clone()
            .cluster_node()
            .config("cluster-node-timeout", "1000")
            .config("cluster-replica-validity-factor", "0")
            .start()
    }
}

fn meeting_point(node: &Redis) -> Result<(String, String, String)> {
    let bus = node.tell(&["CONFIG", "GET", "cluster-port"])?.text();
    let bus = bus.rsplit(' ').next().unwrap_or_default().to_owned();
    let addr = node.tls_addr().unwrap_or(node.addr());
    Ok((addr.ip().to_string(), addr.port().to_string(), bus))
}

/// True if a line of `CLUSTER NODES` lists the slot, alone or in a range. Slots that are being moved are in brackets.
fn serves(line: &str, slot: u16) -> bool {
    line.split(' ').skip(8).filter(|range| !range.starts_with('[')).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let inside = |first: u16, last: u16| (first..=last).contains(&slot);
        first.parse().ok().zip(last.parse().ok()).is_some_and(|(first, last)| inside(first, last))
    })
}
