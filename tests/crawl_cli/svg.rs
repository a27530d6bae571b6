//! The timeline that `--svg` draws: its lanes, legend, axis and bars, read back from the file.

use std::{error::Error, fs, io::Write, path::PathBuf, process::Stdio};

use roxmltree::{Document, Node};

use super::{Server, TestResult, crawl, run};

const LEGEND: [(&str, &str); 5] = [
    ("waiting: slot full", "#E69F00"),
    ("waiting: pace", "#56B4E9"),
    ("waiting: total full", "#CC79A7"),
    ("to the headers", "#D55E00"),
    ("in the body", "#0072B2"),
];
const CONCURRENCY: &str = LEGEND[0].1;
const PACE: &str = LEGEND[1].1;
const TOTAL: &str = LEGEND[2].1;
const BODY: &str = LEGEND[4].1;
/// Where the lanes begin, below the title and the legend.
const HEAD: f64 = 76.0;

/// A text and where it stands, as far as that can be told without the font.
struct Label {
    text: String,
    /// Where it is anchored.
    x: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// A filled rectangle.
#[derive(Clone, Debug)]
struct Bar {
    colour: String,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

struct Picture {
    labels: Vec<Label>,
    bars: Vec<Bar>,
    polygons: Vec<String>,
    width: f64,
    height: f64,
}

fn number(node: Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

// === impl Label ===

impl Label {
    fn read(node: Node<'_, '_>) -> Self {
        let text = node.text().unwrap_or_default().trim().to_owned();
        let (x, size) = (number(node, "x"), number(node, "font-size"));
        let shift = node.attribute("dy").unwrap_or_default();
        let share = |unit| shift.strip_suffix(unit).and_then(|shift| shift.parse::<f64>().ok());
        let shift = share("em").or(share("ex").map(|share| share / 2.0)).unwrap_or_default();
        let bottom = number(node, "y") + shift * size;
        let width = 0.5 * size * text.chars().count() as f64;
        let left = match node.attribute("text-anchor") {
            Some("end") => x - width,
            Some("middle") => x - width / 2.0,
            _ => x,
        };
        Self { text, x, left, right: left + width, top: bottom - 0.7 * size, bottom }
    }
}

// === impl Picture ===

impl Picture {
    fn read(path: &PathBuf) -> Result<Self, Box<dyn Error>> {
        let text = fs::read_to_string(path)?;
        let document = Document::parse(&text)?;
        let all = |name: &'static str| document.descendants().filter(move |node| node.has_tag_name(name));
        let colour = |node: Node<'_, '_>| node.attribute("fill").unwrap_or_default().to_owned();
        Ok(Self {
            labels: all("text").map(Label::read).collect(),
            bars: all("rect")
                .map(|node| {
                    let (left, top) = (number(node, "x"), number(node, "y"));
                    let (right, bottom) = (left + number(node, "width"), top + number(node, "height"));
                    Bar { colour: colour(node), left, right, top, bottom }
                })
                .collect(),
            polygons: all("polygon").map(colour).collect(),
            width: number(document.root_element(), "width"),
            height: number(document.root_element(), "height"),
        })
    }

    fn label(&self, text: &str) -> Result<&Label, String> {
        let all: Vec<_> = self.labels.iter().map(|label| &label.text).collect();
        self.labels.iter().find(|label| label.text == text).ok_or_else(|| format!("no {text:?} in {all:?}"))
    }

    /// Checks what every picture has.
    fn check(&self) -> TestResult {
        for (name, colour) in LEGEND {
            let label = self.label(name)?;
            let mut swatches = self.bars.iter().filter(|bar| bar.colour == colour && bar.bottom < HEAD);
            let swatch = swatches.next().ok_or_else(|| format!("no colour of {name}"))?;
            assert!(swatch.right < label.x && label.x < swatch.right + 10.0, "{name} is beside its colour");
            let middle = (label.top + label.bottom) / 2.0;
            assert!(swatch.top < middle && middle < swatch.bottom, "{name} is on its line");
            assert!(swatches.next().is_none());
        }
        self.label("seconds")?;
        for (index, one) in self.labels.iter().enumerate() {
            assert!(0.0 <= one.left && one.right <= self.width, "{} is cut", one.text);
            assert!(0.0 <= one.top && one.bottom <= self.height, "{} is cut", one.text);
            for other in &self.labels[index + 1..] {
                let apart = one.right <= other.left || other.right <= one.left;
                let apart = apart || one.bottom <= other.top || other.bottom <= one.top;
                assert!(apart, "{} hides {}", other.text, one.text);
            }
        }
        for bar in &self.bars {
            assert!(0.0 <= bar.left && bar.right <= self.width, "{bar:?}");
            assert!(0.0 <= bar.top && bar.bottom <= self.height, "{bar:?}");
        }
        Ok(())
    }

    /// Returns the pixels of a second and where the first one begins, as the axis has them.
    fn axis(&self) -> Result<(f64, f64), Box<dyn Error>> {
        let below = self.label("seconds")?.top;
        let ticks: Vec<(f64, f64)> = self
            .labels
            .iter()
            .filter(|label| below - 40.0 < label.top && label.top < below)
            .filter_map(|label| Some((label.text.parse().ok()?, label.x)))
            .collect();
        let [first, .., last] = ticks[..] else { return Err(format!("ticks: {ticks:?}").into()) };
        assert_eq!(first.0, 0.0);
        let second = (last.1 - first.1) / (last.0 - first.0);
        for (time, x) in &ticks {
            assert!((first.1 + time * second - x).abs() < 2.0, "{ticks:?} are evenly spaced");
        }
        Ok((second, first.1))
    }

    /// Returns the bars of `colour` in the lane of that name, from top to bottom.
    fn lane(&self, name: &str, colour: &str) -> Result<Vec<&Bar>, String> {
        let Label { right, top: y, .. } = *self.label(name)?;
        let height = self.height;
        // Lanes have a stripe each, or lie between two.
        let stripes = self.bars.iter().filter(|bar| bar.colour == "#F3F4F6");
        let edges: Vec<f64> = stripes.flat_map(|bar| [bar.top, bar.bottom]).chain([HEAD, height]).collect();
        let top = edges.iter().copied().filter(|edge| *edge <= y).fold(0.0, f64::max);
        let bottom = edges.iter().copied().filter(|edge| *edge > y).fold(height, f64::min);
        let inside = |bar: &&Bar| bar.left > right && top <= bar.top && bar.bottom <= bottom;
        let mut bars: Vec<_> = self.bars.iter().filter(inside).filter(|bar| bar.colour == colour).collect();
        bars.sort_by(|a, b| a.top.total_cmp(&b.top).then(a.left.total_cmp(&b.left)));
        Ok(bars)
    }
}

#[test]
fn timeline_has_a_lane_per_slot_and_bars_as_long_as_the_waits() -> TestResult {
    let server = Server::start()?;
    let file = path("bars.svg");
    let paced = vec![server.url("127.0.0.1", "page"); 4];
    let full = vec![server.url("localhost", "slow"); 3];
    let limits = ["--delay", "200ms", "--slot", "localhost:delay=0s,concurrency=1", "--svg"];
    let output = crawl()?.args(limits).arg(&file).args(paced).args(full).output()?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");

    let picture = Picture::read(&file)?;
    picture.check()?;
    assert!(picture.labels.iter().any(|label| label.text.starts_with("7 requests in 2 slots, 0.")));
    let (second, zero) = picture.axis()?;

    // The first starts at once; the others wait one delay more each, and end soon after.
    let waits = picture.lane("127.0.0.1", PACE)?;
    assert_eq!(waits.len(), 3, "{waits:?}");
    for (nth, bar) in (1..).zip(waits) {
        let (begin, end) = ((bar.left - zero) / second, (bar.right - zero) / second);
        let due = 0.2 * f64::from(nth);
        assert!(begin < 0.05, "asked for at once: {begin}");
        assert!(due - 0.03 < end && end < due + 0.1, "{nth}: {end}");
    }
    // One at a time, each of 60 ms: who is third waits for two of them.
    let waits = picture.lane("localhost", CONCURRENCY)?;
    let bodies = picture.lane("localhost", BODY)?;
    assert_eq!((waits.len(), bodies.len()), (2, 3), "{waits:?} {bodies:?}");
    let lengths: Vec<_> = bodies.iter().map(|bar| (bar.right - bar.left) / second).collect();
    assert!(lengths.iter().all(|length| (0.05..0.12).contains(length)), "{lengths:?}");
    assert!(bodies.windows(2).all(|pair| pair[0].right <= pair[1].left + 1.0), "{bodies:?}");
    assert!((waits[1].right - waits[1].left) / second > 0.11, "{waits:?}");

    // No bar hides another.
    let bars: Vec<_> = picture.bars.iter().filter(|bar| bar.left >= zero && bar.top >= HEAD).collect();
    for (index, one) in bars.iter().enumerate() {
        for other in &bars[index + 1..] {
            let apart = one.right <= other.left || other.right <= one.left;
            assert!(apart || one.bottom < other.top || other.bottom < one.top, "{one:?} {other:?}");
        }
    }
    Ok(())
}

#[test]
fn wait_is_drawn_when_the_slot_waited_for_it() -> TestResult {
    let server = Server::start()?;
    let file = path("mixed.svg");
    let urls = vec![server.url("localhost", "slow"); 4];
    let output =
        crawl()?.args(["--delay", "200ms", "--concurrency", "1", "--svg"]).arg(&file).args(urls).output()?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");

    let picture = Picture::read(&file)?;
    let (second, zero) = picture.axis()?;
    let mut waits = picture.lane("localhost", CONCURRENCY)?;
    waits.extend(picture.lane("localhost", PACE)?);
    let bottom = waits.iter().map(|bar| bar.bottom).fold(0.0, f64::max);
    waits.retain(|bar| bar.bottom == bottom);
    waits.sort_by(|a, b| a.left.total_cmp(&b.left));
    let ends: Vec<_> = waits.iter().map(|bar| (bar.colour.as_str(), (bar.right - zero) / second)).collect();

    // Behind each body of 60 ms the slot is full, then the rest of the delay is waited for.
    let due = [0.0, 0.2, 0.4].map(|start| [(CONCURRENCY, start + 0.06), (PACE, start + 0.2)]).concat();
    assert_eq!(ends.len(), due.len(), "{ends:?}");
    for ((colour, end), (due_colour, due)) in ends.iter().zip(due) {
        assert_eq!(*colour, due_colour, "{ends:?}");
        assert!(due - 0.02 < *end && *end < due + 0.1, "{ends:?}");
    }
    Ok(())
}

#[test]
fn timeline_of_many_requests_shows_how_many_were_in_each_phase() -> TestResult {
    let server = Server::start()?;
    let file = path("counts.svg");
    let mut child = crawl()?
        .args(["--json", "--delay", "0s", "--concurrency", "4", "--slot", "localhost:delay=2ms", "--svg"])
        .arg(&file)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("no standard input")?;
    let (full, paced) = (server.url("127.0.0.1", "page"), server.url("localhost", "page"));
    for _ in 0..300 {
        writeln!(stdin, "{full}\n{paced}")?;
    }
    drop(stdin);
    assert_eq!(child.wait()?.code(), Some(0));

    let picture = Picture::read(&file)?;
    picture.check()?;
    picture.axis()?;
    for name in ["127.0.0.1", "localhost"] {
        picture.label(name)?;
    }
    let most = picture.labels.iter().filter(|label| label.text.ends_with(" at once"));
    assert_eq!(most.count(), 2);
    let colours = |colour: &str| picture.polygons.iter().filter(|polygon| *polygon == colour).count();
    assert!(colours(CONCURRENCY) >= 1 && colours(PACE) >= 1, "{:?}", picture.polygons);
    assert_eq!(colours(TOTAL), 0, "both together are far below the total");
    assert!(picture.bars.len() < 20, "{} bars beside the legend", picture.bars.len());
    Ok(())
}

#[test]
fn timeline_that_cannot_be_written_is_a_bad_argument() -> TestResult {
    let server = Server::start()?;
    let file = path("no such folder").join("a.svg");
    let file = file.to_str().ok_or("no text")?;
    let output = run(&["--svg", file, &server.url("127.0.0.1", "page")])?;
    let stderr = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(file) && stderr.lines().count() == 1, "{stderr}");
    assert!(output.stdout.is_empty(), "it is told before the work");
    Ok(())
}

#[test]
fn timeline_of_nothing_is_a_picture_too() -> TestResult {
    let file = path("empty.svg");
    let output = crawl()?.args(["--svg".as_ref(), file.as_os_str(), "-".as_ref()]).output()?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let picture = Picture::read(&file)?;
    picture.check()?;
    assert!(picture.labels.iter().any(|label| label.text.starts_with("0 requests in 0 slots")));
    Ok(())
}
