//! The example `dashboard` from outside, without a browser: what its endpoints do, and what they refuse.
//!
//! `cargo test --test dashboard` alone builds no example: it runs the one that was built last.

#![cfg(feature = "serde")]

use std::{
    env,
    error::Error,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;

type TestResult = Result<(), Box<dyn Error>>;

const JSON: &str = "content-type: application/json\r\n";

/// A running dashboard, which ends with the test.
struct Dashboard {
    process: Child,
    /// As in `127.0.0.1:8080`.
    host: String,
}

/// Returns the example, which `cargo test` builds beside the tests.
fn command() -> Result<Command, Box<dyn Error>> {
    let test = env::current_exe()?;
    let target = test.ancestors().nth(2).ok_or("no target directory")?;
    let path = target.join("examples").join(format!("dashboard{}", env::consts::EXE_SUFFIX));
    if !path.exists() {
        return Err(format!("{} is missing: cargo build --example dashboard", path.display()).into());
    }
    Ok(Command::new(path))
}

impl Dashboard {
    fn start() -> Result<Self, Box<dyn Error>> {
        let mut process = command()?.args(["--for", "1m"]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let host = line.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
        Ok(Self { process, host })
    }

    /// Sends a request as it is and returns the status, the headers and the body.
    fn ask(&self, head: &str, body: &str) -> Result<(u16, String, String), Box<dyn Error>> {
        let mut stream = TcpStream::connect(&self.host)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "{head}connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
        Ok((status, head.to_owned(), body.to_owned()))
    }

    /// Sends what the page would send.
    fn post(&self, path: &str, body: &str) -> Result<(u16, String), Box<dyn Error>> {
        let head = format!("POST {path} HTTP/1.1\r\nhost: {0}\r\norigin: http://{0}\r\n{JSON}", self.host);
        let (status, _, body) = self.ask(&head, body)?;
        Ok((status, body))
    }

    /// Returns the first snapshot that `fits`, as a page gets it that has just connected.
    fn slot_that(&self, name: &str, fits: impl Fn(&Value) -> bool) -> Result<Value, Box<dyn Error>> {
        let mut stream = TcpStream::connect(&self.host)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET /events HTTP/1.1\r\nhost: {}\r\n\r\n", self.host)?;
        let mut kind = String::new();
        // Some twenty seconds of them.
        for line in BufReader::new(stream).lines().take(200) {
            let line = line?;
            if let Some(event) = line.strip_prefix("event: ") {
                kind = event.to_owned();
            }
            let Some(data) = line.strip_prefix("data: ").filter(|_| kind == "snapshot") else { continue };
            let snapshot: Value = serde_json::from_str(data)?;
            let mut slots = snapshot["slots"].as_array().into_iter().flatten();
            if let Some(slot) = slots.find(|slot| slot["key"] == name && fits(slot)) {
                return Ok(slot.clone());
            }
        }
        Err(format!("{name} never was as it should be").into())
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

// L6, V1
#[test]
fn slots_are_paused_resumed_and_limited_and_the_events_show_it() -> TestResult {
    let dashboard = Dashboard::start()?;
    let slot = dashboard.slot_that("shop.test", |slot| slot["waiting"].as_u64() > Some(0))?;
    assert_eq!(slot["limits"]["delay_s"], 0.25);
    assert_eq!(slot["paused_for_s"], Value::Null);

    let (status, body) = dashboard.post("/pause", r#"{"slot": "shop.test", "seconds": 30}"#)?;
    assert_eq!((status, body.as_str()), (204, ""));
    let slot = dashboard.slot_that("shop.test", |slot| !slot["paused_for_s"].is_null())?;
    let left = slot["paused_for_s"].as_f64().ok_or("no number")?;
    assert!(20.0 < left && left <= 30.0, "{left}");

    assert_eq!(dashboard.post("/resume", r#"{"slot": "shop.test"}"#)?.0, 204);
    dashboard.slot_that("shop.test", |slot| slot["paused_for_s"].is_null())?;

    assert_eq!(dashboard.post("/concurrency", r#"{"slot": "shop.test", "concurrency": 7}"#)?.0, 204);
    dashboard.slot_that("shop.test", |slot| slot["limits"]["concurrency"] == 7)?;
    assert_eq!(dashboard.post("/concurrency", r#"{"slot": "shop.test", "concurrency": null}"#)?.0, 204);
    dashboard.slot_that("shop.test", |slot| slot["limits"]["concurrency"].is_null())?;
    Ok(())
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() -> TestResult {
    let dashboard = Dashboard::start()?;
    for (path, body, status, told) in [
        ("/pause", r#"{"slot": "nobody.test", "seconds": 1}"#, 404, "nobody.test"),
        ("/resume", r#"{"slot": "nobody.test"}"#, 404, "nobody.test"),
        ("/concurrency", r#"{"slot": "*.test", "concurrency": 1}"#, 404, "*.test"),
        ("/pause", r#"{"slot": "shop.test", "seconds": 0}"#, 422, "seconds"),
        ("/pause", r#"{"slot": "shop.test", "seconds": -1}"#, 422, "seconds"),
        ("/pause", r#"{"slot": "shop.test", "seconds": 1e300}"#, 422, "seconds"),
        ("/pause", r#"{"slot": "shop.test", "seconds": "long"}"#, 422, "seconds"),
        ("/pause", r#"{"slot": "shop.test"}"#, 422, "seconds"),
        ("/pause", r#"{"slot": "shop.test", "seconds": 1, "all": true}"#, 422, "all"),
        ("/concurrency", r#"{"slot": "shop.test", "concurrency": 0}"#, 422, "the least is 1"),
        ("/concurrency", r#"{"slot": "shop.test", "concurrency": -1}"#, 422, "concurrency"),
        ("/concurrency", r#"{"slot": "shop.test", "concurrency": 1.5}"#, 422, "concurrency"),
        ("/concurrency", r#"{"slot": "shop.test"}"#, 422, "concurrency"),
        ("/resume", r#"{"slot": "#, 400, "JSON"),
        ("/resume", "", 400, "JSON"),
        ("/nowhere", "{}", 404, ""),
    ] {
        let (answered, why) = dashboard.post(path, body)?;
        assert_eq!(answered, status, "{path} {body}: {why}");
        assert!(why.contains(told), "{path} {body}: {why}");
    }
    let head = format!("GET /pause HTTP/1.1\r\nhost: {}\r\n", dashboard.host);
    assert_eq!(dashboard.ask(&head, "")?.0, 405);
    let slot = dashboard.slot_that("shop.test", |_| true)?;
    assert_eq!((&slot["paused_for_s"], &slot["limits"]["concurrency"]), (&Value::Null, &4.into()));
    Ok(())
}

#[test]
fn other_sites_have_no_say() -> TestResult {
    let dashboard = Dashboard::start()?;
    let host = &dashboard.host;
    let port = host.rsplit(':').next().ok_or("no port")?;
    let body = r#"{"slot": "shop.test", "seconds": 30}"#;
    for (headers, status) in [
        // A page of another origin, of another port, and one that hides where it is from.
        (format!("host: {host}\r\norigin: http://evil.test\r\n{JSON}"), 403),
        (format!("host: {host}\r\norigin: http://127.0.0.1:1\r\n{JSON}"), 403),
        (format!("host: {host}\r\norigin: null\r\n{JSON}"), 403),
        // A name that somebody else has made point here.
        (format!("host: evil.test:{port}\r\norigin: http://evil.test:{port}\r\n{JSON}"), 403),
        (format!("host: evil.test:{port}\r\n{JSON}"), 403),
        // What a form can send.
        (format!("host: {host}\r\ncontent-type: text/plain\r\n"), 415),
        (format!("host: {host}\r\ncontent-type: application/x-www-form-urlencoded\r\n"), 415),
        (format!("host: {host}\r\n"), 415),
    ] {
        let (answered, _, why) = dashboard.ask(&format!("POST /pause HTTP/1.1\r\n{headers}"), body)?;
        assert_eq!(answered, status, "{headers}: {why}");
        assert!(!why.is_empty());
    }
    let preflight = format!(
        "OPTIONS /pause HTTP/1.1\r\nhost: {host}\r\norigin: http://evil.test\r\naccess-control-request-method: POST\r\n"
    );
    let (status, head, _) = dashboard.ask(&preflight, "")?;
    assert!(status == 403 && !head.to_lowercase().contains("access-control-allow"), "{head}");
    let slot = dashboard.slot_that("shop.test", |_| true)?;
    assert_eq!(slot["paused_for_s"], Value::Null, "nothing of it was done");

    // The page is here by both of its names, takes nothing from elsewhere and is in no frame.
    for name in [host.clone(), format!("localhost:{port}")] {
        let (status, head, page) = dashboard.ask(&format!("GET / HTTP/1.1\r\nhost: {name}\r\n"), "")?;
        assert_eq!(status, 200);
        assert!(head.contains("default-src 'none'") && head.contains("frame-ancestors 'none'"), "{head}");
        assert!(!page.contains("http://") && !page.contains("https://"));
    }
    Ok(())
}

#[test]
fn it_ends_by_itself_when_its_time_is_over() -> TestResult {
    let output = command()?.args(["--for", "300ms"]).output()?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    Ok(())
}
