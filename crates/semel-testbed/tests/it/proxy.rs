//! The faults of the proxy, before an echo server of a few lines.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use semel_testbed::{Direction, FaultProxy, wait};

const LONG: Duration = Duration::from_secs(10);
/// Long enough that what was to be held would have come.
const SHORT: Duration = Duration::from_millis(100);

fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut &stream));
        }
    });
    addr
}

fn client(proxy: &FaultProxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn hears(mut stream: &TcpStream, expected: &[u8]) {
    let mut heard = vec![0; expected.len()];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(heard, expected);
}

fn hears_nothing(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(SHORT)).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    stream.set_read_timeout(Some(LONG)).unwrap();
}

fn is_reset(mut stream: &TcpStream) {
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn passes_and_counts() {
    let proxy = FaultProxy::before(echo()).unwrap();
    let mut one = client(&proxy);
    one.write_all(b"hello").unwrap();
    hears(&one, b"hello");
    // Bytes are counted once they are passed on, so a moment after they were heard.
    let counts = || {
        let counts = proxy.counts();
        (counts.accepted, counts.open, counts.to_server, counts.to_client)
    };
    wait::until("both directions are counted", LONG, || counts() == (1, 1, 5, 5)).unwrap();
    drop(one);
    wait::until("the connection is closed", LONG, || proxy.counts().open == 0).unwrap();
}

#[test]
fn holds_one_direction_and_delivers_on_release() {
    let proxy = FaultProxy::before(echo()).unwrap();
    let mut one = client(&proxy);
    proxy.hold(Direction::ToClient);
    one.write_all(b"a").unwrap();
    wait::until("the server has it", LONG, || proxy.counts().to_server == 1).unwrap();
    hears_nothing(&one);
    proxy.release();
    hears(&one, b"a");

    proxy.hold(Direction::ToServer);
    one.write_all(b"b").unwrap();
    hears_nothing(&one);
    assert_eq!(proxy.counts().to_server, 1);
    one.write_all(b"c").unwrap();
    proxy.release();
    hears(&one, b"bc");
}

#[test]
fn held_also_hides_that_the_server_has_gone() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = FaultProxy::before(listener.local_addr().unwrap()).unwrap();
    let one = client(&proxy);
    let (server, _) = listener.accept().unwrap();
    proxy.hold(Direction::Both);
    drop(server);
    hears_nothing(&one);
    proxy.release();
    assert_eq!((&one).read(&mut [0]).unwrap(), 0);
}

#[test]
fn cuts_open_connections_with_a_reset() {
    let proxy = FaultProxy::before(echo()).unwrap();
    let mut one = client(&proxy);
    one.write_all(b"a").unwrap();
    hears(&one, b"a");
    proxy.cut();
    assert_eq!(proxy.counts().open, 0);
    is_reset(&one);
    let mut two = client(&proxy);
    two.write_all(b"b").unwrap();
    hears(&two, b"b");
}

#[test]
fn refuses_until_healed() {
    let proxy = FaultProxy::before(echo()).unwrap();
    let mut open = client(&proxy);
    open.write_all(b"a").unwrap();
    hears(&open, b"a");
    proxy.refuse();
    assert_eq!(TcpStream::connect(proxy.addr()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    open.write_all(b"b").unwrap();
    hears(&open, b"b");
    proxy.heal();
    let mut late = client(&proxy);
    late.write_all(b"c").unwrap();
    hears(&late, b"c");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a delay is measured in real time")]
fn delays_without_serialising() {
    let proxy = FaultProxy::before(echo()).unwrap();
    let mut one = client(&proxy);
    one.set_nodelay(true).unwrap();
    proxy.delay(Direction::ToServer, Duration::from_millis(100));
    let start = Instant::now();
    for byte in b"0123456789" {
        one.write_all(&[*byte]).unwrap();
        thread::sleep(Duration::from_millis(5));
    }
    hears(&one, b"0123456789");
    let took = start.elapsed();
    // Ten pieces delayed one after the other would take a second.
    assert!(took >= Duration::from_millis(145) && took < Duration::from_millis(900), "{took:?}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a pace is measured in real time")]
fn trickles() {
    let proxy = FaultProxy::before(echo()).unwrap();
    let mut one = client(&proxy);
    proxy.trickle(Direction::ToClient, 2, Duration::from_millis(20));
    let start = Instant::now();
    one.write_all(b"0123456789").unwrap();
    hears(&one, b"0123456789");
    assert!(start.elapsed() >= Duration::from_millis(80), "{:?}", start.elapsed());
}

#[test]
fn drops_one_reply_after_the_server_has_acted() {
    let proxy = FaultProxy::before(echo()).unwrap();
    let mut one = client(&proxy);
    let mut other = client(&proxy);
    proxy.drop_reply_to(b"COMPLETE");
    other.write_all(b"PING").unwrap();
    hears(&other, b"PING");
    one.write_all(b"do COMPLETE it").unwrap();
    is_reset(&one);
    assert_eq!(proxy.counts().dropped_replies, 1);
    assert_eq!(proxy.counts().to_server, 18);
    // Once: the next one passes.
    let mut again = client(&proxy);
    again.write_all(b"COMPLETE").unwrap();
    hears(&again, b"COMPLETE");
}

#[test]
fn half_open_connections_hear_nothing_for_ever() {
    let proxy = FaultProxy::before(echo()).unwrap();
    let mut old = client(&proxy);
    old.write_all(b"a").unwrap();
    hears(&old, b"a");
    proxy.half_open();
    let mut new = client(&proxy);
    for mut stream in [&old, &new] {
        stream.write_all(b"b").unwrap();
        hears_nothing(stream);
    }
    assert_eq!(proxy.counts().to_server, 1);
    proxy.heal();
    new.write_all(b"c").unwrap();
    hears_nothing(&new);
    let mut fresh = client(&proxy);
    fresh.write_all(b"d").unwrap();
    hears(&fresh, b"d");
}

#[test]
fn a_dead_target_resets_and_a_new_target_is_used() {
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let proxy = FaultProxy::before(gone).unwrap();
    is_reset(&client(&proxy));
    proxy.retarget(echo());
    let mut one = client(&proxy);
    one.write_all(b"a").unwrap();
    hears(&one, b"a");
}

#[test]
fn works_inside_a_runtime_that_does_nothing_else() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let proxy = FaultProxy::before(echo()).unwrap();
        let mut one = client(&proxy);
        one.write_all(b"a").unwrap();
        hears(&one, b"a");
        proxy.cut();
        is_reset(&one);
    });
}
