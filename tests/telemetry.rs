//! Events and metrics: what is told, under which names, and that labels are bounded.
#![cfg(all(feature = "tracing", feature = "metrics"))]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::with_local_recorder;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::time::advance;
use tokio_test::task::spawn;
use tower_slot::telemetry::Watch;
use tower_slot::{SlotConfig, SlotLimits, Slots};
use tracing::field::{Field, Visit};
use tracing::span;

const SECOND: Duration = Duration::from_secs(1);

/// Writes down every event as one line: level, then the fields in their order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "tower_slot"
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.lines().push(line.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines())
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything a recorder has, as `name{labels} -> value`; histograms as their values.
fn numbers(snapshotter: &Snapshotter) -> BTreeMap<String, Vec<f64>> {
    let metrics = snapshotter.snapshot().into_vec().into_iter();
    let all = metrics.map(|(key, _, _, value)| {
        let labels: Vec<_> =
            key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let values = match value {
            DebugValue::Counter(n) => vec![n as f64],
            DebugValue::Gauge(n) => vec![n.into_inner()],
            DebugValue::Histogram(values) => values.into_iter().map(|value| value.into_inner()).collect(),
        };
        (format!("{}{{{}}}", key.key().name(), labels.join(",")), values)
    });
    all.collect()
}

#[tokio::test(start_paused = true)]
async fn a_request_tells_of_its_start_its_wait_and_its_end() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let slots = Slots::new(SlotConfig::builder().concurrency(1).wait_timeout(4 * SECOND).build().unwrap());
    let first = slots.try_acquire("a.com").unwrap();
    let (mut second, mut third) = (spawn(slots.acquire("a.com")), spawn(slots.acquire("a.com")));
    assert!(second.poll().is_pending() && third.poll().is_pending());
    advance(2 * SECOND).await;
    drop(first);
    let permit = match second.poll() {
        std::task::Poll::Ready(permit) => permit.unwrap(),
        std::task::Poll::Pending => panic!("not started"),
    };
    advance(2 * SECOND).await;
    assert!(third.poll().is_ready());
    drop(permit);
    assert_eq!(
        log.take(),
        [
            r#"DEBUG message=started slot="a.com" waited=0.0 concurrency=0.0 pace=0.0 total=0.0"#,
            r#"TRACE message=ended slot="a.com" outcome="finished" lasted=2.0"#,
            r#"DEBUG message=started slot="a.com" waited=2.0 concurrency=2.0 pace=0.0 total=0.0"#,
            r#"DEBUG message=refused slot="a.com" kind=WaitTimeout reason="concurrency" waited=4.0 in_flight=1"#,
            r#"TRACE message=ended slot="a.com" outcome="finished" lasted=2.0"#,
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_warns_once_a_period_of_old_permits_and_growing_queues() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let slots = Slots::new(SlotConfig::builder().concurrency(1).build().unwrap());
    let mut watch = spawn(slots.watch(Watch::new().period(SECOND).oldest_permit(2 * SECOND).growing(2)));
    let held = slots.try_acquire("a.com").unwrap();
    let mut waiters = Vec::new();
    log.take();
    for _ in 0..4 {
        let mut waiter = spawn(slots.acquire("a.com"));
        assert!(waiter.poll().is_pending());
        waiters.push(waiter);
        assert!(watch.poll().is_pending());
        advance(SECOND).await;
    }
    assert!(watch.poll().is_pending());
    assert_eq!(
        log.take(),
        [
            r#"WARN message=queue only grows slot="a.com" waiting=2 reason="concurrency""#,
            r#"WARN message=queue only grows slot="a.com" waiting=3 reason="concurrency""#,
            r#"WARN message=oldest permit is old: bodies not read? slot="a.com" in_flight=1 oldest=3.0"#,
            r#"WARN message=queue only grows slot="a.com" waiting=4 reason="concurrency""#,
            r#"WARN message=oldest permit is old: bodies not read? slot="a.com" in_flight=1 oldest=4.0"#,
        ]
    );
    drop((held, waiters, slots));
    advance(SECOND).await;
    assert!(watch.poll().is_ready(), "the watch ends with the last handle");
}

#[tokio::test(start_paused = true)]
async fn numbers_have_their_names_labels_and_units() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let slots = Slots::new(SlotConfig::builder().delay(2 * SECOND).queue_capacity(1).build().unwrap());
    let first = slots.try_acquire("a.com").unwrap();
    let mut second = spawn(slots.acquire("a.com"));
    assert!(second.poll().is_pending());
    assert!(slots.try_acquire("a.com").is_err());
    slots.report();
    advance(2 * SECOND).await;
    assert!(second.poll().is_ready());
    drop(first);
    let numbers = numbers(&snapshotter);
    let of = |name: &str| numbers.get(name).map(Vec::as_slice);
    assert_eq!(of("tower_slot.requests.started{slot=a.com}"), Some(&[2.0][..]));
    assert_eq!(of("tower_slot.requests.refused{slot=a.com}"), Some(&[1.0][..]));
    assert_eq!(of("tower_slot.requests.finished{slot=a.com}"), Some(&[2.0][..]));
    assert_eq!(of("tower_slot.requests.timed_out{slot=a.com}"), Some(&[0.0][..]));
    assert_eq!(of("tower_slot.wait.duration{slot=a.com,reason=pace}"), Some(&[2.0][..]));
    assert_eq!(of("tower_slot.wait.duration{slot=a.com,reason=none}"), Some(&[0.0][..]));
    assert_eq!(of("tower_slot.wait.duration{slot=a.com,reason=total}"), Some(&[][..]));
    assert_eq!(
        of("tower_slot.body.duration{slot=a.com}").map(|values| values.iter().sum::<f64>()),
        Some(2.0)
    );
    assert_eq!(of("tower_slot.requests.in_flight{slot=a.com}"), Some(&[1.0][..]));
    assert_eq!(of("tower_slot.requests.waiting{slot=a.com,reason=pace}"), Some(&[1.0][..]));
    assert_eq!(of("tower_slot.requests.waiting{slot=a.com,reason=total}"), Some(&[0.0][..]));
}

#[test]
fn labels_are_bounded_and_the_rest_shares_one() {
    let labels_of = |config: tower_slot::SlotConfigBuilder| {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        with_local_recorder(&recorder, || {
            let slots = Slots::new(config.build().unwrap());
            for host in ["a", "b", "c", "d", "b"] {
                drop(slots.try_acquire(host).unwrap());
            }
        });
        let mut started = numbers(&snapshotter);
        started.retain(|name, _| name.starts_with("tower_slot.requests.started"));
        started.into_iter().map(|(name, n)| (name, n[0] as u32)).collect::<Vec<_>>()
    };
    let of = |slot: &str| format!("tower_slot.requests.started{{slot={slot}}}");
    let config = SlotConfig::builder;
    assert_eq!(labels_of(config().metric_labels(2)), [(of("a"), 1), (of("b"), 2), (of("other"), 2)]);
    assert_eq!(labels_of(config().metric_labels(0)), [(of("other"), 5)]);
    assert_eq!(labels_of(config().metric_slots(["c"])), [(of("c"), 1), (of("other"), 4)]);
    assert_eq!(labels_of(config().slot("a", SlotLimits::new())).len(), 4);
}
