//! Beside reqwest-retry: inside and outside of it, and what happens to the permit while it sleeps.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;
use reqwest::{Body, Response};
use reqwest_middleware::{Error, Middleware, Result};
use reqwest_retry::{RetryDecision, RetryError, RetryPolicy, RetryTransientMiddleware};
use tokio::time::Instant;
use tokio_test::assert_pending;
use tokio_test::task::spawn;
use tower_slot::reqwest_middleware::SlotMiddleware;
use tower_slot::{SlotConfig, SlotErrorKind, Slots};

use crate::ahead::Broken;
use crate::chain::{Script, chain, get, refusal, says, says_part};
use crate::loopback::{answer, in_flight, serve, slots};

/// Retries twice, half a second later, and notes how many were in flight when it was asked.
#[derive(Clone)]
struct Policy {
    slots: Slots,
    in_flight: Arc<Mutex<Vec<usize>>>,
}

impl RetryPolicy for Policy {
    fn should_retry(&self, _: SystemTime, n_past_retries: u32) -> RetryDecision {
        let in_flight = self.slots.snapshot().total.in_flight;
        self.in_flight.lock().unwrap().push(in_flight);
        match n_past_retries {
            2.. => RetryDecision::DoNotRetry,
            _ => RetryDecision::Retry { execute_after: SystemTime::now() + Duration::from_millis(500) },
        }
    }
}

fn retry(slots: &Slots) -> (Policy, Arc<dyn Middleware>) {
    let policy = Policy { slots: slots.clone(), in_flight: Arc::default() };
    (policy.clone(), Arc::new(RetryTransientMiddleware::new_with_policy(policy)))
}

/// S4, case 38: the slot inside. The failed response keeps its permit through the back-off, and the next attempt
/// obeys the pace.
#[tokio::test(start_paused = true)]
async fn retry_outside_takes_the_slot_anew_and_holds_it_through_the_back_off() {
    let slots = slots(1);
    let (policy, retry) = retry(&slots);
    let ((_a, first), (_b, second)) = (says_part(503), says_part(503));
    let script = Script::default().then(Ok(first)).then(Ok(second));
    let client = chain([retry, Arc::new(SlotMiddleware::new(slots.clone())), Arc::new(script.clone())]);
    let start = Instant::now();
    let mut attempts = spawn(client.execute(get("http://a.test/")));
    assert_pending!(attempts.poll());
    // Another one waits for the whole back-off, and goes before the second attempt.
    let acquire = async { (slots.acquire("a.test").await.unwrap(), Instant::now()) };
    let ((permit, at), ()) = tokio::join!(acquire, async {
        tokio::time::sleep(Duration::from_millis(499)).await;
        assert_eq!(slots.stats("a.test").unwrap().waiting, 1);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_pending!(attempts.poll());
    });
    assert_eq!((at - start).as_millis(), 500);
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(permit);
    assert_eq!(attempts.await.unwrap().status(), 200);
    assert_eq!(script.times(start), [0, 600, 1100]);
    assert_eq!(*policy.in_flight.lock().unwrap(), [1, 1]);
    assert_eq!(slots.stats("a.test").unwrap().in_flight, 0);
}

/// S4, case 38: the next attempt obeys the pace.
#[tokio::test(start_paused = true)]
async fn every_attempt_obeys_the_pace() {
    let config = SlotConfig::builder().concurrency(1).delay(Duration::from_secs(2));
    let slots = Slots::new(config.build().unwrap());
    let (_, retry) = retry(&slots);
    let script = Script::default().then(Ok(says(503, ""))).then(Ok(says(503, "")));
    let client = chain([retry, Arc::new(SlotMiddleware::new(slots.clone())), Arc::new(script.clone())]);
    let start = Instant::now();
    assert_eq!(client.execute(get("http://a.test/")).await.unwrap().status(), 200);
    assert_eq!(script.times(start), [0, 2000, 4000]);
}

/// S4, case 38: what ends by itself, or is ended, has given the permit back before the back-off.
#[tokio::test(start_paused = true)]
async fn permit_is_back_before_the_back_off_when_the_failed_response_has_ended() {
    let slots = slots(1);
    let with = |limit, answers: [Result<Response>; 3]| {
        let (policy, retry) = retry(&slots);
        let script = answers.into_iter().fold(Script::default(), Script::then);
        let middleware = SlotMiddleware::new(slots.clone()).finish_failed(limit);
        (policy, chain([retry, Arc::new(middleware), Arc::new(script)]))
    };
    let broken = || Ok(says(503, Body::wrap(Broken::default())));
    let long = || Ok(says(500, "0123456789"));
    for (limit, answers, expected) in [
        (0, [long(), long(), long()], [1, 1, 1]),
        (0, [Ok(says(503, "")), Ok(says(429, "")), Ok(says(408, ""))], [0, 0, 0]),
        (10, [long(), Ok(says(429, "short")), Ok(says(408, "short"))], [0, 0, 0]),
        (9, [long(), long(), long()], [1, 1, 1]),
        (9, [broken(), broken(), broken()], [0, 0, 0]),
    ] {
        let (policy, client) = with(limit, answers);
        drop(client.execute(get("http://a.test/")).await.unwrap());
        assert_eq!(*policy.in_flight.lock().unwrap(), expected, "{limit}");
        assert_eq!(slots.stats("a.test").unwrap().in_flight, 0);
    }
}

/// S4, case 38: the slot outside. All attempts share one permit, the back-offs too.
#[tokio::test(start_paused = true)]
async fn retry_inside_shares_one_permit() {
    let slots = slots(1);
    let (policy, retry) = retry(&slots);
    let ((_a, first), (_b, second)) = (says_part(503), says_part(503));
    let script = Script::default().then(Ok(first)).then(Ok(second)).then(Ok(says(200, "whole")));
    let client = chain([Arc::new(SlotMiddleware::new(slots.clone())), retry, Arc::new(script.clone())]);
    let start = Instant::now();
    let response = client.execute(get("http://a.test/")).await.unwrap();
    assert_eq!(script.times(start), [0, 500, 1000]);
    assert_eq!(*policy.in_flight.lock().unwrap(), [1, 1]);
    let stats = slots.stats("a.test").unwrap();
    assert_eq!((stats.in_flight, stats.counts.started), (1, 1));
    assert_eq!(response.text().await.unwrap(), "whole");
    assert_eq!(slots.stats("a.test").unwrap().in_flight, 0);
}

/// S3: a refusal is not retried, and is found in the retry's error.
#[tokio::test]
async fn retry_outside_does_not_retry_a_refusal() {
    let slots = slots(1);
    slots.close();
    let (policy, retry) = retry(&slots);
    let client = chain([retry, Arc::new(SlotMiddleware::new(slots.clone())), Arc::new(Script::default())]);
    let error = client.execute(get("http://a.test/")).await.unwrap_err();
    assert!(policy.in_flight.lock().unwrap().is_empty());
    let Error::Middleware(error) = &error else { panic!("{error:?}") };
    let Some(RetryError::Error(error)) = error.downcast_ref::<RetryError>() else { panic!("{error:?}") };
    assert_eq!(refusal(error).unwrap().kind(), SlotErrorKind::Closed);
}

/// S4, case 38, over real sockets: inside and outside, limit 1, ten at a time, every first answer a long 503.
#[tokio::test]
async fn retry_does_not_deadlock_at_a_limit_of_one() {
    for (is_outside, limit) in [(true, 0), (true, 1 << 20), (false, 0)] {
        let seen = Arc::new(Mutex::new(std::collections::HashSet::new()));
        let addr = serve(move |request| {
            let is_first = seen.lock().unwrap().insert(request.uri().path().to_owned());
            let mut answer = answer(Full::new(Bytes::from(vec![b'x'; 300_000])));
            if is_first {
                *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            async { Ok(answer) }
        })
        .await;
        let slots = slots(1);
        let policy = reqwest_retry::policies::ExponentialBackoff::builder()
            .retry_bounds(Duration::from_millis(1), Duration::from_millis(2))
            .build_with_max_retries(3);
        let retry: Arc<dyn Middleware> = Arc::new(RetryTransientMiddleware::new_with_policy(policy));
        let slot: Arc<dyn Middleware> = Arc::new(SlotMiddleware::new(slots.clone()).finish_failed(limit));
        let client = chain(if is_outside { [retry, slot] } else { [slot, retry] });
        let tasks: Vec<_> = (0..10)
            .map(|path| tokio::spawn(client.get(format!("http://{addr}/{path}")).send()))
            .map(|task| tokio::spawn(async { task.await.unwrap().unwrap().bytes().await.unwrap().len() }))
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), 300_000);
        }
        let counts = slots.stats("127.0.0.1").unwrap().counts;
        assert_eq!(counts.started, if is_outside { 20 } else { 10 });
        assert_eq!(in_flight(&slots), 0);
    }
}
