//! The example `crawl` from outside: its command line, what it prints and its exit codes.
//!
//! The scenes are not run here, they take real time; running the example is their test.

mod svg;

use std::{
    env,
    error::Error,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;

type TestResult = Result<(), Box<dyn Error>>;

/// A server on loopback: `/page` has ten bytes, so has `/slow` but only after 60 ms, `/broken` breaks off after ten of a
/// hundred, `/silent` never answers, all else is a 404.
struct Server {
    port: u16,
}

impl Server {
    fn start() -> Result<Self, Box<dyn Error>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || answer(stream));
            }
        });
        Ok(Self { port })
    }

    fn url(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}/{path}", self.port)
    }
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let path = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let head = match path.split(' ').nth(1) {
        Some("/page") => "200 OK\r\ncontent-length: 10",
        Some("/slow") => {
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 10\r\nconnection: close\r\n\r\n")?;
            thread::sleep(Duration::from_millis(60));
            return write!(stream, "0123456789");
        }
        Some("/broken") => "200 OK\r\ncontent-length: 100",
        Some("/silent") => {
            // Until the client gives up.
            return stream.read(&mut [0]).map(drop);
        }
        _ => "404 Not Found\r\ncontent-length: 10",
    };
    write!(stream, "HTTP/1.1 {head}\r\nconnection: close\r\n\r\n0123456789")
}

/// Returns the example, which `cargo test` builds beside the tests.
///
/// `cargo test --test crawl_cli` alone builds no example: it runs the one that was built last.
fn crawl() -> Result<Command, Box<dyn Error>> {
    let test = env::current_exe()?;
    let target = test.ancestors().nth(2).ok_or("no target directory")?;
    let path: PathBuf = target.join("examples").join(format!("crawl{}", env::consts::EXE_SUFFIX));
    if !path.exists() {
        return Err(format!("{} is missing: cargo build --example crawl", path.display()).into());
    }
    let mut command = Command::new(path);
    command.stdin(Stdio::null());
    Ok(command)
}

fn run(args: &[&str]) -> Result<Output, Box<dyn Error>> {
    Ok(crawl()?.args(args).output()?)
}

/// Returns a URL at which nobody listens.
fn refused_url() -> Result<String, Box<dyn Error>> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    Ok(format!("http://127.0.0.1:{port}/"))
}

fn json_lines(output: &Output) -> Result<Vec<Value>, Box<dyn Error>> {
    let text = std::str::from_utf8(&output.stdout)?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

#[test]
fn bad_argument_gives_one_line_and_exit_code_2() -> TestResult {
    let url = "http://a.example/";
    for (args, told) in [
        (vec!["--bogus"], "--bogus"),
        (vec!["--delay", "1s"], "no URL"),
        (vec!["--delay", "5", url], "--delay"),
        (vec!["--timeout", "0s", url], "--timeout"),
        (vec!["--concurrency", "0", url], "--concurrency"),
        (vec!["--total", "many", url], "--total"),
        (vec!["--jitter", "120%", url], "--jitter"),
        (vec!["--slot", "api", url], "--slot"),
        (vec!["--slot", "api:speed=1", url], "speed"),
        (vec!["--slot", "api:concurrency=0", url], "concurrency"),
        (vec!["--slot", "a.example:delay=1s", "--slot", "A.Example.:delay=2s", url], "a.example"),
        (vec!["--group", "shop", url], "--group"),
        (vec!["--group", "x=a.example", "--group", "y=a.example", url], "a.example"),
        (vec!["a.example"], "a.example"),
        (vec![url, "ftp://a.example/"], "ftp://a.example/"),
    ] {
        let output = run(&args)?;
        let stderr = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(told), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    Ok(())
}

#[test]
fn password_of_a_url_is_not_printed() -> TestResult {
    let server = Server::start()?;
    let url = server.url("user:secret@127.0.0.1", "page");
    for (args, code) in [(["ftp://user:secret@a.example/"], 2), ([url.as_str()], 0)] {
        let output = run(&args)?;
        assert_eq!(output.status.code(), Some(code));
        let text = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8(text)?.contains("secret"), "{args:?}");
    }
    Ok(())
}

#[test]
fn two_urls_give_two_lines_and_a_table_of_slots() -> TestResult {
    let server = Server::start()?;
    let (page, other) = (server.url("127.0.0.1", "page"), server.url("localhost", "other"));
    let output = run(&[&page, &other])?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");

    let text = String::from_utf8(output.stdout)?;
    let line = |start: &str, url: &str| {
        text.lines()
            .filter(|line| line.starts_with(start) && line.ends_with(url) && line.contains(" 10 B "))
            .count()
    };
    assert_eq!(line("200", &page), 1, "{text}");
    assert_eq!(line("404", &other), 1, "{text}");
    let table: Vec<_> = text.lines().skip(2).collect();
    assert!(table[0].starts_with('┌') && table[1].contains("to headers"), "{text}");
    assert_eq!(
        table.iter().filter(|row| row.contains("127.0.0.1") || row.contains("localhost")).count(),
        2,
        "{text}"
    );
    Ok(())
}

#[test]
fn json_is_one_object_a_line_and_its_last_has_the_slots() -> TestResult {
    let server = Server::start()?;
    let output = run(&["--json", &server.url("127.0.0.1", "page"), &server.url("localhost", "page")])?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");

    let lines = json_lines(&output)?;
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in &lines[..2] {
        assert_eq!((&line["status"], &line["bytes"]), (&200.into(), &10.into()), "{line}");
        assert!(["waited_s", "to_headers_s", "body_s"].iter().all(|time| line[time].is_f64()), "{line}");
    }
    let slots: Vec<_> =
        lines[2]["slots"].as_array().into_iter().flatten().map(|slot| &slot["slot"]).collect();
    assert_eq!(slots, ["127.0.0.1", "localhost"]);
    Ok(())
}

#[test]
fn failed_url_is_told_on_its_line_and_the_others_go_on() -> TestResult {
    let server = Server::start()?;
    let (refused, page, broken) =
        (refused_url()?, server.url("localhost", "page"), server.url("localhost", "broken"));
    let output = run(&["--json", "--delay", "0s", &refused, &broken, &page])?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");

    let lines = json_lines(&output)?;
    let of =
        |url: &str| lines.iter().find(|line| line["url"] == url).ok_or_else(|| format!("no line of {url}"));
    let error = |url: &str| Ok::<_, String>(of(url)?["error"].as_str().unwrap_or_default());
    assert!(error(&refused)?.contains("refused"), "{lines:?}");
    assert!(!error(&broken)?.is_empty(), "{lines:?}");
    assert_eq!(of(&broken)?["bytes"], 10, "what came of a broken body is counted");
    assert_eq!(of(&page)?["status"], 200);
    assert!(of(&page)?["error"].is_null());
    Ok(())
}

#[test]
fn silent_server_meets_the_timeout() -> TestResult {
    let server = Server::start()?;
    let output = run(&["--timeout", "100ms", &server.url("127.0.0.1", "silent")])?;
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout)?;
    assert!(
        text.lines().next().is_some_and(|line| line.ends_with("failed: not done within 100ms")),
        "{text}"
    );
    Ok(())
}

#[test]
fn hosts_of_a_group_share_the_slot_and_its_limits() -> TestResult {
    let server = Server::start()?;
    let (one, two) = (server.url("127.0.0.1", "page"), server.url("localhost", "page"));
    let limits = ["--delay", "0s", "--slot", "both:delay=150ms", "--group", "both=127.0.0.1,LocalHost."];
    let output = run(&[&limits[..], &["--json", &one, &two]].concat())?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");

    let lines = json_lines(&output)?;
    assert_eq!(lines.len(), 3);
    assert!(lines[..2].iter().all(|line| line["slot"] == "both"), "{lines:?}");
    // The second of them, whichever it was, came a delay later.
    let waited = lines.iter().filter_map(|line| line["waited_s"].as_f64()).fold(0.0, f64::max);
    assert!(waited > 0.1, "{lines:?}");
    assert_eq!(lines[2]["slots"][0]["slot"], "both");
    assert_eq!(lines[2]["slots"][0]["finished"], 2);
    Ok(())
}

#[test]
fn standard_input_is_read_where_a_dash_stands() -> TestResult {
    let server = Server::start()?;
    let (argument, line) = (server.url("127.0.0.1", "page"), server.url("localhost", "page"));
    let mut child =
        crawl()?.args(["--json", &argument, "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().ok_or("no standard input")?;
    write!(stdin, "# a comment\n\n  {line}\r\nnonsense\n")?;
    drop(stdin);
    let output = child.wait_with_output()?;
    assert_eq!(output.status.code(), Some(1), "a bad line fails, the others go on: {output:?}");

    let lines = json_lines(&output)?;
    let mut urls: Vec<_> = lines.iter().filter_map(|line| line["url"].as_str()).collect();
    urls.sort_unstable();
    let mut expected = [argument.as_str(), &line, "nonsense"];
    expected.sort_unstable();
    assert_eq!(urls, expected);
    Ok(())
}

#[test]
fn closed_output_ends_it_quietly() -> TestResult {
    let server = Server::start()?;
    let urls = vec![server.url("127.0.0.1", "page"); 50];
    let mut child =
        crawl()?.args(["--delay", "0s"]).args(urls).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop(child.stdout.take());
    let output = child.wait_with_output()?;
    assert_eq!(String::from_utf8(output.stderr)?, "");
    assert_eq!(output.status.code(), Some(0));
    Ok(())
}

#[test]
fn help_tells_the_rule_for_standard_input() -> TestResult {
    let output = run(&["--help"])?;
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout)?.contains("Standard input is read only where `-` stands"));
    Ok(())
}

#[test]
fn limits_and_groups_come_from_a_file() -> TestResult {
    let server = Server::start()?;
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("crawl.toml");
    let path = file.to_str().ok_or("no text")?;
    let url = server.url("127.0.0.1", "page");
    std::fs::write(&file, "delay = \"10ms\"\n[groups]\nlocal = [\"127.0.0.1\"]\n")?;
    let output = run(&["--config", path, "--json", &url])?;
    if !cfg!(feature = "serde") {
        assert!(String::from_utf8(output.stderr)?.contains("--features serde"));
        return Ok(());
    }
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"slot\":\"local\""), "{output:?}");
    let bad = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bad.toml");
    let bad_path = bad.to_str().ok_or("no text")?;
    std::fs::write(&bad, "concurrency = 2\ndealy = \"10ms\"\n")?;
    for (args, told) in [
        (
            vec!["--config", bad_path, &url],
            "line 2: all slots: unknown field \"dealy\", did you mean \"delay\"?",
        ),
        (vec!["--config", "/nowhere.toml", &url], "/nowhere.toml"),
        (vec!["--config", path, "--delay", "1s", &url], "--delay"),
    ] {
        let output = run(&args)?;
        let stderr = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(told), "{args:?}: {stderr}");
    }
    Ok(())
}
