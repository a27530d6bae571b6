//! The timeline as a picture: a lane per slot, and in it a bar per request, or for many how many were in each phase.

use std::{fs::File, io::Write, ops::Range, path::PathBuf};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use tower_slot::BoxError;

use crate::{
    content::{self, Content, LEAST_HEIGHT, LEGEND},
    timeline::{Lane, busiest},
};

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const SOFT: RGBColor = RGBColor(0x55, 0x55, 0x55);
const GRID: RGBColor = RGBColor(0xCC, 0xCC, 0xCC);
const STRIPE: RGBColor = RGBColor(0xF3, 0xF4, 0xF6);

/// Of more slots than that, those in which most time went.
const LANES: usize = 32;

// All in pixels.
/// A letter of a name.
const LETTER: i32 = 7;
const WIDTH: i32 = 1000;
/// Title and legend.
const HEAD: i32 = 76;
/// The axis.
const FOOT: i32 = 44;
/// Room for a name, and one line below it.
const TWO_LINES: i32 = 36;

/// A file that becomes a picture.
pub(crate) struct Picture {
    path: PathBuf,
    file: File,
}

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

// === impl Picture ===

impl Picture {
    /// Creates the file.
    ///
    /// # Errors
    /// When that cannot be done, with the path.
    pub(crate) fn create(path: PathBuf) -> Result<Self, BoxError> {
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(format!("{}: {error}", path.display()).into()),
        }
    }

    /// Draws `lanes` and writes the file.
    ///
    /// # Errors
    /// When it cannot be written, with the path.
    pub(crate) fn draw(mut self, lanes: Vec<Lane>) -> Result<(), BoxError> {
        let text = draw(lanes)?;
        self.file
            .write_all(text.as_bytes())
            .map_err(|error| format!("{}: {error}", self.path.display()).into())
    }
}

fn draw(all: Vec<Lane>) -> Result<String, BoxError> {
    let (slots, requests) = (all.len(), all.iter().map(|lane| lane.bars.len()).sum::<usize>());
    let end = all.iter().flat_map(|lane| &lane.bars).map(|bar| bar.ended).fold(0.001, f64::max);
    let mut title = format!("{requests} requests in {slots} slots, {end:.1} s");
    let lanes = busiest(all, LANES);
    if lanes.len() < slots {
        title.push_str(&format!(" (shown: the {LANES} slots in which most of the time went)"));
    }
    let longest = lanes.iter().map(|lane| lane.name.chars().count()).max().unwrap_or_default();
    let x = (24 + LETTER * longest as i32).clamp(120, 260)..WIDTH - 24;
    let contents = content::choose(&lanes, end, (x.end - x.start) as usize);
    let height = HEAD + FOOT + contents.iter().map(Content::height).sum::<i32>().max(LEAST_HEIGHT);

    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, (WIDTH as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    head(&root, &format!("{requests} requests in {slots} slots, {end:.1} s"))?;
    let mut top = HEAD;
    for (index, content) in contents.iter().enumerate() {
        let bottom = top + content.height();
        if index % 2 == 0 {
            root.draw(&Rectangle::new([(0, top), (WIDTH, bottom)], STRIPE.filled()))?;
        }
        top = bottom;
    }
    axis(&root, x.clone(), end)?;
    let mut top = HEAD;
    for (lane, content) in lanes.iter().zip(&contents) {
        let bottom = top + content.height();
        label(&root, lane, content, top..bottom, x.start - 10)?;
        content.draw(&root, lane, top..bottom, x.clone(), end)?;
        top = bottom;
    }
    root.present()?;
    drop(root);
    Ok(text)
}

/// The title, and which colour is which.
fn head(root: &Area<'_>, title: &str) -> Result<(), BoxError> {
    root.draw(&Text::new(title.to_owned(), (16, 14), ("sans-serif", 24).into_font().color(&INK)))?;
    let mut x = 16;
    for (name, colour) in LEGEND {
        root.draw(&Rectangle::new([(x, 48), (x + 14, 62)], colour.filled()))?;
        root.draw(&Text::new(name, (x + 20, 48), ("sans-serif", 16).into_font().color(&INK)))?;
        x += 48 + LETTER * name.len() as i32;
    }
    Ok(())
}

/// Seconds below the lanes, and lines up from them.
fn axis(root: &Area<'_>, x: Range<i32>, end: f64) -> Result<(), BoxError> {
    let mut chart = ChartBuilder::on(root)
        .margin_top(HEAD)
        .margin_right(WIDTH - x.end)
        .x_label_area_size(FOOT)
        .y_label_area_size(x.start)
        .build_cartesian_2d(0.0..end, 0.0..1.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(SOFT)
        .x_labels(12)
        .x_desc("seconds")
        .axis_desc_style(("sans-serif", 16).into_font().color(&INK))
        .label_style(("sans-serif", 15).into_font().color(&INK))
        .draw()?;
    Ok(())
}

/// The name of a lane, and where there is room below it, how many it is about.
fn label(root: &Area<'_>, lane: &Lane, content: &Content, y: Range<i32>, right: i32) -> Result<(), BoxError> {
    let middle = (y.start + y.end) / 2;
    let style = |size: i32, colour: &RGBColor, at| {
        ("sans-serif", size).into_font().color(colour).pos(Pos::new(HPos::Right, at))
    };
    let name = shortened(&lane.name, (right / LETTER) as usize);
    if y.end - y.start < TWO_LINES {
        root.draw(&Text::new(name, (right, middle), style(16, &INK, VPos::Center)))?;
        return Ok(());
    }
    root.draw(&Text::new(name, (right, middle), style(16, &INK, VPos::Bottom)))?;
    let number = match content {
        Content::Bars { .. } => format!("{} requests", lane.bars.len()),
        Content::Counts(counts) => format!("up to {:.0} at once", content::most(counts).ceil()),
    };
    root.draw(&Text::new(number, (right, middle + 3), style(14, &SOFT, VPos::Top)))?;
    Ok(())
}

/// Returns `name` with its middle left out where it has more than `most` characters.
fn shortened(name: &str, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    let start: String = name.chars().take(most / 2).collect();
    let end: String = name.chars().skip(length + 1 + most / 2 - most).collect();
    format!("{start}…{end}")
}
