//! A client that invents a new host for each request, at full speed and over real sockets: memory, the number of slots and
//! the share of everybody else stay what the configuration says.
//!
//! `SLOT_HOSTILE` says how many requests it sends. That no request visits more than 64 slots shows only inside, in
//! `src/slot/table/tests.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attack;
mod server;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use allocation_counter::measure;
use fastrand::Rng;
use http::StatusCode;
use tokio::sync::oneshot;
use tower_slot::{SlotConfig, SlotConfigBuilder, SlotErrorKind, SlotLimits};

use self::attack::{Attacker, Connection};
use self::server::{LONGEST_HEAD, Seen, serve};

const MAX_SLOTS: usize = 2_000;

/// How many connections the attack has, in two threads.
const CONNECTIONS: usize = 16;

/// How many requests are under way on each of them.
const PIPELINE: usize = 16;

/// How many connections a tenant has, more than may be in flight.
const CROWD: usize = 3;

/// How many of a tenant's may be in flight.
const SHARE: usize = 2;

/// The most that an idle slot takes, its name apart.
const SLOT_BYTES: usize = 448;

/// What all the shards of an empty table may keep.
const TABLE_BYTES: usize = 64 * 1024;

/// Whoever has no host, and a tenant, are named; of the others most have a pace to remember, so that they cannot go.
fn config() -> SlotConfigBuilder {
    let share = || SlotLimits::new().concurrency(SHARE).delay(Duration::ZERO).unbounded_queue();
    SlotConfig::builder()
        .max_slots(MAX_SLOTS)
        .delay(Duration::from_secs(10))
        .queue_capacity(0)
        .slot("", SlotLimits::new().unlimited_concurrency().delay(Duration::ZERO))
        .slot("tenant.test", share())
        .slot("*.live.test", share())
        .slot("*.quick.test", SlotLimits::new().delay(Duration::ZERO))
}

fn requests() -> usize {
    std::env::var("SLOT_HOSTILE").map_or(30_000, |requests| requests.parse().unwrap())
}

/// What came of an attack.
struct Outcome {
    seen: Seen,
    /// How many requests were sent that count as without a host.
    without_host: usize,
    /// How many the tenant and the one with a live slot sent.
    shares: [usize; 2],
}

/// Attacks while a tenant and a live slot have work of their own, and checks all that holds for both answers.
fn attack(config: SlotConfigBuilder, named: usize, allowed: &[StatusCode]) -> Outcome {
    let seen = Seen::new(config.build().unwrap());
    let (to_clients, address) = mpsc::channel();
    let (stop, stopped) = oneshot::channel();
    let clients = {
        let (seen, allowed) = (seen.clone(), allowed.to_vec());
        thread::spawn(move || {
            let address = address.recv().unwrap();
            let mut hold = Connection::open(address);
            hold.send(b"GET /hold HTTP/1.1\r\nhost: a.live.test\r\n\r\n");
            seen.wait_for_hold();
            let done = clients(address, &allowed);
            seen.let_go();
            assert_eq!(hold.status(), StatusCode::OK);
            drop(hold);
            stop.send(()).unwrap();
            done
        })
    };
    // All that the server allocates, it does on this thread.
    let begin = Instant::now();
    let taken = measure(|| serve(&seen, &to_clients, stopped));
    let time = begin.elapsed();
    let (without_host, shares) = clients.join().unwrap();

    let slots = &seen.slots;
    let snapshot = slots.snapshot();
    let names: usize = snapshot.slots.iter().map(|slot| slot.key.as_str().len()).sum();
    let bound = snapshot.slots.len() * SLOT_BYTES + names + TABLE_BYTES;
    let peak = seen.peak_slots();
    println!("{} requests in {time:?}, {:.0} a second", requests(), requests() as f64 / time.as_secs_f64());
    println!(
        "at most {peak} slots, {MAX_SLOTS} and {named} named; {} were recycled",
        snapshot.recycled.slots
    );
    println!("{} bytes at the end, {bound} may be; at most {}", taken.bytes_current, taken.bytes_max);
    println!("refused: {:?}; others sent {shares:?}", seen.refused());

    // The bound was reached, and not passed.
    assert_eq!(peak, MAX_SLOTS + named);
    assert!(taken.bytes_current <= bound as i64);
    // The heads that are being read come and go.
    let connections = (CONNECTIONS + 2 * CROWD + 1) * LONGEST_HEAD;
    let most = MAX_SLOTS * (SLOT_BYTES + 253) + TABLE_BYTES + connections;
    assert!(taken.bytes_max <= most as u64, "{most}");

    for (key, sent) in ["tenant.test", "a.live.test"].into_iter().zip(shares) {
        let stats = slots.stats(key).unwrap();
        let hold = usize::from(key == "a.live.test");
        assert_eq!(stats.counts.started as usize, sent + hold, "{key} had one slot all the time");
        assert!(sent > 10, "{key}: {sent}");
        assert_eq!(seen.peak_in_flight(key), SHARE, "{key}");
    }
    assert_eq!(slots.stats("").unwrap().counts.started as usize, without_host);
    Outcome { seen, without_host, shares }
}

/// One attacker less when it is dropped, also by a panic.
struct End<'a>(&'a AtomicUsize);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs all clients to their end. Returns how many requests without a host, and of each share, were sent.
fn clients(address: SocketAddr, allowed: &[StatusCode]) -> (usize, [usize; 2]) {
    let (left, running) = (&AtomicUsize::new(requests() / PIPELINE), &AtomicUsize::new(2));
    thread::scope(|scope| {
        let attackers = [1, 2].map(|seed| {
            scope.spawn(move || {
                let _end = End(running);
                let mut attacker = Attacker::new(seed);
                let mut connections = [0; CONNECTIONS / 2].map(|_| Connection::open(address));
                let take = |left: usize| left.checked_sub(1);
                'attack: loop {
                    for connection in &mut connections {
                        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
                            break 'attack;
                        }
                        connection.send(&attacker.requests(PIPELINE));
                    }
                    for connection in &mut connections {
                        connection
                            .statuses()
                            .for_each(|status| assert!(allowed.contains(&status), "{status}"));
                    }
                }
                for connection in &mut connections {
                    connection.statuses().for_each(drop);
                }
                attacker.without_host()
            })
        });
        let crowds = ["tenant.test", "A.Live.test:80"].map(|host| {
            let member = move || {
                let mut connection = Connection::open(address);
                let request = format!("GET /work HTTP/1.1\r\nhost: {host}\r\n\r\n");
                let mut sent = 0;
                while running.load(Ordering::Relaxed) > 0 {
                    connection.send(request.as_bytes());
                    assert_eq!(connection.status(), StatusCode::OK, "{host}");
                    sent += 1;
                }
                sent
            };
            [0; CROWD].map(|_| scope.spawn(member))
        });
        let shares = crowds.map(|crowd| crowd.into_iter().map(|member| member.join().unwrap()).sum());
        let without_host = attackers.into_iter().map(|attacker| attacker.join().unwrap()).sum();
        (without_host, shares)
    })
}

// G4, K1, K2, case 36
#[test]
fn a_stranger_who_invents_hosts_is_refused_and_nobody_else_is() {
    let allowed = [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE];
    let Outcome { seen, without_host, shares } = attack(config(), 2, &allowed);
    let refused = seen.refused();
    assert_eq!(refused.keys().collect::<Vec<_>>(), [&SlotErrorKind::TooManySlots], "{refused:?}");
    let too_many = refused[&SlotErrorKind::TooManySlots];
    assert_eq!(seen.slots.snapshot().recycled.counts.refused as usize, too_many);
    // Whoever was not refused was answered.
    let asked = requests() / PIPELINE * PIPELINE + shares[0] + shares[1] + 1;
    assert_eq!(seen.answered() + too_many, asked);
    assert!(too_many > requests() / 10 && without_host > requests() / 10);
}

// G4, K1, K2, case 36
#[test]
fn a_stranger_who_invents_hosts_shares_one_slot_and_nobody_elses() {
    let rest = SlotLimits::new().concurrency(CONNECTIONS / 4).delay(Duration::ZERO);
    let config = config().slot("rest", rest).overflow_slot("rest");
    let allowed = [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS];
    let Outcome { seen, .. } = attack(config, 3, &allowed);
    let stats = seen.slots.stats("rest").unwrap();
    println!("in the overflow slot: {:?}", stats.counts);
    let refused = seen.refused().get(&SlotErrorKind::QueueFull).copied().unwrap_or_default();
    assert_eq!(seen.refused().len(), 1, "{:?}", seen.refused());
    assert_eq!(stats.counts.refused as usize, refused);
    // It is limited as any other.
    assert!(stats.counts.started as usize > requests() / 20 && refused > requests() / 100);
}

// G4, K1, K2: for any bytes
#[test]
fn no_bytes_as_host_make_it_panic_or_pass_the_bound() {
    const MAX: usize = 8;
    let config = SlotConfig::builder().max_slots(MAX).slot("", SlotLimits::new());
    let seen = Seen::new(config.slot("tenant.test", SlotLimits::new()).build().unwrap());
    let (to_clients, address) = mpsc::channel();
    let (stop, stopped) = oneshot::channel();
    let clients = thread::spawn(move || {
        let address: SocketAddr = address.recv().unwrap();
        let mut rng = Rng::with_seed(3);
        let mut answers = 0;
        for n in 0..requests() / 30 {
            let mut connection = Connection::open(address);
            connection.send(&attack::any_bytes(n, &mut rng));
            answers += connection.rest().iter().filter(|status| **status == StatusCode::OK).count();
        }
        let mut connection = Connection::open(address);
        connection.send(b"GET / HTTP/1.1\r\nhost: tenant.test\r\n\r\n");
        assert_eq!(connection.status(), StatusCode::OK, "it goes on");
        stop.send(()).unwrap();
        answers
    });
    serve(&seen, &to_clients, stopped);
    let answers = clients.join().unwrap();
    println!("{answers} of {} were answered; at most {} slots", requests() / 30, seen.peak_slots());
    assert!(answers > requests() / 120);
    assert_eq!(seen.peak_slots(), MAX + 2);
    assert_eq!(seen.refused().len(), 0, "an idle one makes room");
}
