//! What stands between the client and the gateway. It sees every attempt, and does harm to answers.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use super::wire::{self, Message};
use super::world::{Fault, World};
use crate::kit::PATIENCE;

const HARM: [Fault; 5] = [
    Fault::AnswerCut,
    Fault::AnswerHalved,
    Fault::AnswerLate,
    Fault::BalancerUnavailable,
    Fault::GatewayRestarted,
];

/// Starts it, and gives the address that clients are pointed at.
pub(super) fn start(world: &Arc<World>) -> String {
    wire::serve(world, |world, client| {
        let mut requests = BufReader::new(client);
        while let Some(request) = Message::read(&mut requests) {
            if pass(world, client, &request).is_none() {
                break;
            }
        }
        // The client may be gone already.
        let _ = client.shutdown(Shutdown::Both);
    })
}

/// Passes a request on, and its answer back. None: the connection ends.
fn pass(world: &World, mut client: &TcpStream, request: &Message) -> Option<()> {
    let order = request.order();
    if let Some(order) = &order {
        world.attempted(order, request.header("idempotency-key").unwrap_or_default());
    }
    let harm = order.and_then(|order| world.happens(&order, &HARM));
    if harm == Some(Fault::BalancerUnavailable) {
        return client.write_all(&wire::unavailable()).ok();
    }
    let mut gateway = TcpStream::connect(world.gateway.address()).ok()?;
    gateway.set_read_timeout(Some(PATIENCE)).ok()?;
    gateway.write_all(&request.bytes).ok()?;
    // When it is here, the outcome is kept.
    let answer = Message::read(&mut BufReader::new(&gateway))?.bytes;
    match harm {
        Some(Fault::AnswerCut) => None,
        Some(Fault::AnswerHalved) => {
            client.write_all(&answer[..answer.len() - 20]).ok()?;
            None
        }
        Some(Fault::AnswerLate) => {
            client.set_read_timeout(Some(PATIENCE)).ok()?;
            // Ends when the client hangs up.
            let _ = client.read(&mut [0]);
            None
        }
        Some(Fault::GatewayRestarted) => {
            world.gateway.restart();
            None
        }
        _ => client.write_all(&answer).ok(),
    }
}
