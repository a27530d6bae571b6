//! A running dashboard and a browser that shows it.

use std::{
    env,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chromiumoxide::{
    Browser, BrowserConfig, Page,
    cdp::{
        browser_protocol::{
            emulation::{MediaFeature, SetDeviceMetricsOverrideParams},
            log::EventEntryAdded,
            page::Viewport,
        },
        js_protocol::runtime::{ConsoleApiCalledType, EventConsoleApiCalled, EventExceptionThrown},
    },
    page::ScreenshotParams,
};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{Instant, sleep},
};

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long something may take that is to happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// One at a time: a browser is a lot for a small machine.
static STAGE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

pub struct Stage {
    pub page: Page,
    browser: Browser,
    /// What the page complained of.
    complaints: Arc<Mutex<Vec<String>>>,
    profile: PathBuf,
    _dashboard: Child,
    _alone: tokio::sync::MutexGuard<'static, ()>,
}

// === impl Stage ===

impl Stage {
    /// Opens the page in a window of `width` and `height`, and waits for its rows.
    pub async fn open(name: &str, (width, height): (i64, i64)) -> Result<Self, Error> {
        let alone = STAGE.lock().await;
        // With the features of the other tests, so that nothing is built twice.
        let mut dashboard = Command::new(env!("CARGO"))
            .args(["run", "--quiet", "--all-features", "--example", "dashboard", "--manifest-path"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
            .args(["--", "--for", "3m"])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = dashboard.stdout.take().ok_or("no output")?;
        let address =
            BufReader::new(stdout).lines().next_line().await?.ok_or("the dashboard did not start")?;

        let profile = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-profile"));
        let config = BrowserConfig::builder().no_sandbox().viewport(None).user_data_dir(&profile);
        let (browser, mut handler) = Browser::launch(config.arg("disable-dev-shm-usage").build()?).await?;
        tokio::spawn(async move { while handler.next().await.is_some() {} });
        let page = browser.new_page("about:blank").await?;
        let complaints = Arc::default();
        listen(&page, &complaints).await?;
        page.execute(SetDeviceMetricsOverrideParams::new(width, height, 1.0, width < 600)).await?;
        page.goto(address).await?;
        let stage = Self { page, browser, complaints, profile, _dashboard: dashboard, _alone: alone };
        stage.until("document.querySelectorAll('#rows tr').length === 6").await?;
        Ok(stage)
    }

    /// Evaluates `script` in the page.
    pub async fn get<T: DeserializeOwned>(&self, script: &str) -> Result<T, Error> {
        Ok(self.page.evaluate(script).await?.into_value()?)
    }

    /// Returns the text of a cell in the row of `slot`.
    pub async fn cell(&self, slot: &str, cell: &str) -> Result<String, Error> {
        self.get(&format!("{}.textContent", part(slot, cell))).await
    }

    /// Returns the number that a cell begins with.
    pub async fn number(&self, slot: &str, cell: &str) -> Result<u64, Error> {
        let text = self.cell(slot, cell).await?;
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().map_err(|_| format!("{slot} {cell}: {text:?}").into())
    }

    /// Waits until `condition` is true in the page.
    pub async fn until(&self, condition: &str) -> Result<(), Error> {
        let begin = Instant::now();
        while !self.get::<bool>(condition).await? {
            if begin.elapsed() > PATIENCE {
                let rows: String = self.get("document.body.innerText").await?;
                return Err(format!("never: {condition}\n{rows}").into());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Focuses what the script finds and presses the keys one after the other.
    pub async fn press(&self, target: &str, keys: &[&str]) -> Result<(), Error> {
        self.get::<bool>(&format!("({target}).focus(), document.activeElement === ({target})"))
            .await?
            .then_some(())
            .ok_or_else(|| format!("cannot be focused: {target}"))?;
        let page = self.page.find_element("body").await?;
        for key in keys {
            page.press_key(key).await?;
        }
        Ok(())
    }

    pub async fn colours(&self, scheme: &str) -> Result<(), Error> {
        let scheme = MediaFeature::new("prefers-color-scheme", scheme);
        self.page.emulate_media_features(vec![scheme]).await?;
        Ok(())
    }

    /// Keeps a picture beside the build, for people to look at.
    pub async fn picture(&self, name: &str) -> Result<(), Error> {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.png"));
        let size: [f64; 2] = self.get("[innerWidth, document.documentElement.scrollHeight]").await?;
        let whole = Viewport { x: 0.0, y: 0.0, width: size[0], height: size[1], scale: 1.0 };
        let whole = ScreenshotParams::builder().clip(whole).capture_beyond_viewport(true).build();
        self.page.save_screenshot(whole, file).await?;
        Ok(())
    }

    /// Returns what the page complained of, and ends it all.
    pub async fn close(mut self) -> Result<Vec<String>, Error> {
        self.browser.close().await?;
        self.browser.wait().await?;
        // Large, and of no use any more.
        let _ = std::fs::remove_dir_all(&self.profile);
        Ok(std::mem::take(&mut *self.complaints.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Returns the script that finds a part of the row of `slot`.
pub fn part(slot: &str, selector: &str) -> String {
    format!(
        "[...document.querySelectorAll('#rows tr')].find((row) => row.querySelector('th').textContent === '{slot}')\
         .querySelector('{selector}')"
    )
}

/// Collects errors of the console, of scripts and of the browser about the page.
async fn listen(page: &Page, complaints: &Arc<Mutex<Vec<String>>>) -> Result<(), Error> {
    page.enable_log().await?;
    page.enable_runtime().await?;
    let add = |complaints: &Mutex<Vec<String>>, text: String| {
        complaints.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    };
    let mut thrown = page.event_listener::<EventExceptionThrown>().await?;
    let mut called = page.event_listener::<EventConsoleApiCalled>().await?;
    let mut logged = page.event_listener::<EventEntryAdded>().await?;
    let complaints = complaints.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                Some(event) = thrown.next() => add(&complaints, event.exception_details.text.clone()),
                Some(event) = called.next() => {
                    if matches!(event.r#type, ConsoleApiCalledType::Error | ConsoleApiCalledType::Warning) {
                        add(&complaints, format!("{:?}", event.args));
                    }
                }
                Some(event) = logged.next() => add(&complaints, event.entry.text.clone()),
                else => return,
            }
        }
    });
    Ok(())
}
