//! Any schedule of requests that are sent, answered, read and dropped: what can start starts without being asked
//! again, no limit is passed, and every permit is given back once.
#![allow(clippy::unwrap_used)]

mod support;

use std::task::Poll;
use std::time::Duration;

use proptest::prelude::*;
use tokio::sync::oneshot;
use tokio::time::advance;
use tokio_test::task::{Spawn, spawn};
use tower::{Layer, Service};
use tower_slot::body::SlotBody;
use tower_slot::{Hold, SlotConfig, SlotLayer, WaitReason};

use self::support::{
    Act, Answer, Call, Client, Inner, Readiness, Script, Seen, counts, frame, give, later, layer, planned,
};

const HOSTS: [&str; 3] = ["a.test", "b.test", "c.test"];
const CONCURRENCY: usize = 2;
const TOTAL: usize = 3;
const DELAY: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
enum Op {
    Send { host: usize, hold: Hold, script: Script, upgrade: bool },
    Answer { which: usize, well: bool },
    Read { which: usize },
    Drop { which: usize },
    Ready(bool),
    Advance(u64),
}

/// A request at some point of its life.
enum Request {
    Calling { call: Spawn<Call>, answer: Option<oneshot::Sender<Answer>>, script: Script },
    Reading(Spawn<SlotBody<Script>>),
    Over,
}

/// What is known of a slot's requests from the outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    sent: u64,
    failed: u64,
    finished: u64,
    /// Dropped before the end: gone or cancelled.
    dropped: u64,
}

struct World {
    layer: SlotLayer,
    client: Client,
    inner: Inner,
    requests: Vec<(usize, Hold, Request)>,
    known: [Known; 3],
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// B1, B2, B4, Q5, V1.
    #[test]
    fn any_schedule_gives_every_permit_back_once_and_loses_no_wakeup(
        ops in proptest::collection::vec(any_op(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(play(ops));
    }
}

fn any_script() -> impl Strategy<Value = Script> {
    prop_oneof![
        Just(Script::default()),
        Just(Script::sized(&["a", "b"])),
        Just(Script::chunked(&["a"])),
        Just(Script::chunked(&["a"]).then(Act::Pending).then(Act::Trailers)),
        Just(Script::chunked(&["a"]).then(Act::Error)),
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    let which = 0..12_usize;
    let hold = prop_oneof![4 => Just(Hold::Body), 1 => Just(Hold::Headers)];
    prop_oneof![
        6 => (0..HOSTS.len(), hold, any_script(), proptest::bool::weighted(0.2))
            .prop_map(|(host, hold, script, upgrade)| Op::Send { host, hold, script, upgrade }),
        6 => (which.clone(), proptest::bool::weighted(0.8)).prop_map(|(which, well)| Op::Answer { which, well }),
        6 => which.clone().prop_map(|which| Op::Read { which }),
        3 => which.prop_map(|which| Op::Drop { which }),
        1 => any::<bool>().prop_map(Op::Ready),
        2 => (1..15_u64).prop_map(Op::Advance),
    ]
}

async fn play(ops: Vec<Op>) {
    let config = SlotConfig::builder().concurrency(CONCURRENCY).total_concurrency(TOTAL).delay(DELAY);
    let (layer, inner) = (layer(config), Inner::new());
    let client = layer.layer(inner.clone());
    let mut world = World { layer, client, inner, requests: Vec::new(), known: Default::default() };
    for op in ops {
        world.act(op).await;
        world.run();
        world.check();
    }
    // In the end all go.
    while !world.requests.is_empty() {
        world.drop_request(0);
        world.run();
        world.check();
    }
    let snapshot = world.layer.slots().snapshot();
    assert_eq!((snapshot.total.in_flight, snapshot.total.line), (0, 0));
    assert!(snapshot.slots.iter().all(|slot| slot.in_flight == 0 && slot.waiting == 0));
}

// === impl World ===

impl World {
    async fn act(&mut self, op: Op) {
        match op {
            Op::Send { host, hold, script, upgrade } => {
                let (sender, answer) = later();
                let mut request = planned(HOSTS[host], answer);
                request.extensions_mut().insert(hold);
                if upgrade {
                    // Asked for and never agreed to: it changes nothing.
                    request.headers_mut().insert(http::header::UPGRADE, "x".parse().unwrap());
                }
                let mut call = spawn(self.client.call(request));
                self.known[host].sent += 1;
                let at_once = call.poll();
                assert!(at_once.is_pending());
                let request = Request::Calling { call, answer: Some(sender), script };
                self.requests.push((host, hold, request));
            }
            Op::Answer { which, well } => {
                let Some((.., Request::Calling { answer, script, .. })) = self.requests.get_mut(which) else {
                    return;
                };
                let Some(answer) = answer.take() else { return };
                let script = script.clone();
                give(answer, if well { Answer::ok(script) } else { Answer::Error });
            }
            Op::Read { which } => self.read(which),
            Op::Drop { which } if which < self.requests.len() => self.drop_request(which),
            Op::Drop { .. } => {}
            Op::Ready(true) => self.inner.set_readiness(Readiness::Ready),
            Op::Ready(false) => self.inner.set_readiness(Readiness::Pending),
            Op::Advance(millis) => advance(Duration::from_millis(millis)).await,
        }
    }

    /// Polls those who were woken, and nobody else, until nobody is.
    fn run(&mut self) {
        while let Some((host, hold, request)) = self
            .requests
            .iter_mut()
            .find(|(.., request)| matches!(request, Request::Calling { call, .. } if call.is_woken()))
        {
            let Request::Calling { call, .. } = request else { return };
            match call.poll() {
                Poll::Pending => {}
                Poll::Ready(Err(_)) => {
                    self.known[*host].failed += 1;
                    *request = Request::Over;
                }
                Poll::Ready(Ok(response)) => {
                    let body = response.into_body();
                    let is_over = *hold == Hold::Headers || http_body::Body::is_end_stream(&body);
                    self.known[*host].finished += u64::from(is_over);
                    *request = if is_over { Request::Over } else { Request::Reading(spawn(body)) };
                }
            }
        }
    }

    fn read(&mut self, which: usize) {
        let Some((host, _, request)) = self.requests.get_mut(which) else { return };
        let Request::Reading(body) = request else { return };
        let known = &mut self.known[*host];
        match frame(body) {
            Seen::Error(_) => known.failed += 1,
            Seen::End | Seen::Trailers(_) => known.finished += 1,
            Seen::Data(_) if http_body::Body::is_end_stream(&**body) => known.finished += 1,
            _ => return,
        }
        *request = Request::Over;
    }

    fn drop_request(&mut self, which: usize) {
        let (host, _, request) = self.requests.remove(which);
        self.known[host].dropped += u64::from(!matches!(request, Request::Over));
    }

    fn check(&self) {
        let slots = self.layer.slots();
        let mut in_flight = 0;
        let mut called = 0;
        for (host, known) in self.known.iter().enumerate() {
            let Some(stats) = slots.stats(HOSTS[host]) else {
                assert_eq!(*known, Known::default());
                continue;
            };
            let counts = counts(slots, HOSTS[host]);
            let seen = Known {
                sent: counts.asked,
                failed: counts.failed,
                finished: counts.finished,
                dropped: counts.gone + counts.cancelled,
            };
            assert_eq!(seen, *known, "{}", HOSTS[host]);
            assert_eq!((counts.refused, counts.timed_out), (0, 0));
            // Whoever is still there waits or is in flight.
            let there = self
                .requests
                .iter()
                .filter(|(of, _, request)| *of == host && !matches!(request, Request::Over));
            assert_eq!(stats.in_flight + stats.waiting, there.count(), "{}", HOSTS[host]);
            assert!(stats.in_flight <= CONCURRENCY);
            in_flight += stats.in_flight;
            called += usize::from(stats.reason == Some(WaitReason::Total));
            // What waits for the slot or its pace has a reason to.
            match stats.reason {
                Some(WaitReason::Concurrency) => assert_eq!(stats.in_flight, CONCURRENCY),
                Some(WaitReason::Pace) => assert!(stats.next_start.is_some()),
                _ => {}
            }
        }
        assert!(in_flight <= TOTAL);
        assert_eq!(slots.snapshot().total.in_flight, in_flight);
        if called > 0 {
            assert_eq!(in_flight, TOTAL, "somebody waits for the total");
        }
        assert_eq!(self.inner.reserved(), 0);
    }
}
