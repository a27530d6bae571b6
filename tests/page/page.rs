//! The example dashboard as a person has it, in a real browser: numbers that move, buttons that work, by keyboard too,
//! on a phone and on a desk, in the light and in the dark.

mod stage;

use self::stage::{Error, Stage, part};

type TestResult = Result<(), Error>;

const DESK: (i64, i64) = (1280, 800);
const PHONE: (i64, i64) = (390, 844);

const NAMES: &str = "[...document.querySelectorAll('#rows th')].map((name) => name.textContent)";

const LEGEND: &str =
    "[...document.querySelectorAll('#legend li:not([hidden])')].map((item) => item.textContent)";

const PHASES: [&str; 6] = [
    "waiting: slot full",
    "waiting: pace",
    "waiting: total full",
    "to a connection",
    "to the headers",
    "in the body",
];

/// Fails when the page complained of anything.
async fn end(stage: Stage) -> TestResult {
    assert_eq!(stage.close().await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn rows_appear_and_numbers_move() -> TestResult {
    let stage = Stage::open("rows", DESK).await?;
    let names: Vec<String> = stage.get(NAMES).await?;
    assert_eq!(names, ["api.test", "archive.test", "media.test", "news.test", "shop.test", "wiki.test"]);
    assert_eq!(stage.get::<String>("document.querySelector('#link').textContent").await?, "live");
    assert_eq!(stage.get::<Vec<String>>(LEGEND).await?, PHASES, "this client tells of its connections");

    let (started, line) = (stage.number("api.test", ".started").await?, part("api.test", ".spark path"));
    let points = format!("{line}.getAttribute('d').split('L').length");
    let before: usize = stage.get(&points).await?;
    stage.until(&format!("Number({}.textContent) > {started}", part("api.test", ".started"))).await?;
    stage.until(&format!("{points} > {}", before + 3)).await?;

    // The bar is full, and what takes most of it is said too.
    let shares =
        format!("[...{}.children].map((share) => parseFloat(share.style.width))", part("shop.test", ".bar"));
    let shares: Vec<f64> = stage.get(&shares).await?;
    assert!((shares.iter().sum::<f64>() - 100.0).abs() < 0.5, "{shares:?}");
    assert!(shares[1] > 50.0, "the pace is what this one waits for: {shares:?}");
    let most = stage.cell("shop.test", ".most").await?;
    assert!(most.ends_with(" % pace"), "{most}");
    let spoken: String =
        stage.get(&format!("{}.getAttribute('aria-label')", part("shop.test", ".bar"))).await?;
    assert!(spoken.starts_with(&most), "{spoken}");
    end(stage).await
}

// V1
#[tokio::test]
async fn time_to_a_connection_is_shown_where_a_client_tells_of_it() -> TestResult {
    let stage = Stage::open("connection", DESK).await?;
    // The page as it is, and snapshots of our own: nobody connects, and then one slot does for most of its time.
    let show = |slots: &str| {
        format!(
            "(() => {{
                events.close();
                const none = {{ concurrency_s: 0, pace_s: 0, total_s: 0, connection_s: 0, headers_s: 0, body_s: 0 }};
                const slots = [...rows.values()].map(({{ slot }}) => slot);
                for (const slot of slots) slot.times = {{ ...slot.times, connection_s: 0 }};
                {slots}
                const snapshot = {{ slots, recycled: {{ slots: 0, times: none }}, total: {{ in_flight: 0, limit: 14, line: 0 }} }};
                for (const row of rows.values()) row.past = [];
                events.dispatchEvent(new MessageEvent('snapshot', {{ data: JSON.stringify(snapshot) }}));
                return true;
            }})()"
        )
    };
    stage.get::<bool>(&show("")).await?;
    let (before, after) = PHASES.split_at(3);
    assert_eq!(stage.get::<Vec<String>>(LEGEND).await?, [before, &after[1..]].concat());
    let most =
        "slots.find(({ key }) => key === 'news.test').times = { ...none, connection_s: 3, headers_s: 1 };";
    stage.get::<bool>(&show(most)).await?;
    assert_eq!(stage.get::<Vec<String>>(LEGEND).await?, PHASES);
    assert_eq!(stage.cell("news.test", ".most").await?, "75 % connection");
    let bar = part("news.test", ".bar");
    let spoken: String = stage.get(&format!("{bar}.getAttribute('aria-label')")).await?;
    assert_eq!(spoken, "75 % connection, 25 % headers");
    let widths = format!("[...{bar}.children].map((share) => share.style.width)");
    let widths: Vec<String> = stage.get(&widths).await?;
    assert_eq!(widths, ["0%", "0%", "0%", "75%", "25%", "0%"]);
    stage.picture("desk-connection").await?;
    end(stage).await
}

#[tokio::test]
async fn pause_by_keyboard_holds_a_slot_until_it_is_resumed() -> TestResult {
    let stage = Stage::open("pause", DESK).await?;
    let button = part("news.test", ".pause");
    stage.press(&button, &["Enter"]).await?;
    stage.until(&format!("{}.textContent.startsWith('paused, ')", part("news.test", ".state"))).await?;
    assert_eq!(stage.cell("news.test", ".pause").await?, "Resume");
    assert_eq!(
        stage.get::<String>("document.querySelector('#said').textContent").await?,
        "news.test is paused"
    );
    let held = stage.number("news.test", ".started").await?;
    let other = stage.number("api.test", ".started").await?;
    stage.until(&format!("Number({}.textContent) > {other} + 20", part("api.test", ".started"))).await?;
    // Those in flight finish, newcomers wait.
    stage.until(&format!("{}.textContent === '0/4'", part("news.test", ".flight"))).await?;
    stage.until(&format!("Number({}.textContent) > 0", part("news.test", ".waiting"))).await?;
    assert_eq!(stage.number("news.test", ".started").await?, held);
    assert!(stage.get::<bool>(&format!("document.activeElement === {button}")).await?, "focus stays");
    stage.picture("desk-paused").await?;

    stage.press(&button, &[" "]).await?;
    stage.until(&format!("Number({}.textContent) > {held}", part("news.test", ".started"))).await?;
    assert_eq!(stage.cell("news.test", ".pause").await?, "Pause");
    end(stage).await
}

#[tokio::test]
async fn concurrency_is_set_by_keyboard_and_what_cannot_be_is_refused() -> TestResult {
    let stage = Stage::open("concurrency", DESK).await?;
    let input = part("wiki.test", "input");
    assert_eq!(stage.get::<String>(&format!("{input}.value")).await?, "12");
    stage.press(&input, &["End", "Backspace"]).await?;
    let started = stage.number("wiki.test", ".started").await?;
    stage.until(&format!("Number({}.textContent) > {started} + 20", part("wiki.test", ".started"))).await?;
    assert_eq!(stage.get::<String>(&format!("{input}.value")).await?, "1", "snapshots leave it alone");
    stage.press(&input, &["Enter"]).await?;
    stage.until(&format!("/^[01]\\/1$/.test({}.textContent)", part("wiki.test", ".flight"))).await?;
    let started = stage.number("wiki.test", ".started").await?;
    while stage.number("wiki.test", ".started").await? < started + 5 {
        assert!(stage.number("wiki.test", ".flight").await? <= 1);
    }
    assert_eq!(stage.cell("api.test", ".flight").await?.split('/').next_back(), Some("4"), "others stay");

    let said = "document.querySelector('#said')";
    stage.press(&input, &["End", "Backspace", "0", "Enter"]).await?;
    stage.until(&format!("{said}.matches('.bad') && {said}.textContent.includes('the least is 1')")).await?;
    assert_eq!(stage.get::<String>(&format!("{input}.value")).await?, "0", "what was typed is still there");
    stage.press(&input, &["End", "Backspace", "x", "Enter"]).await?;
    stage.until(&format!("{said}.matches('.bad') && !{said}.textContent.includes('the least is 1')")).await?;
    assert_eq!(
        stage.cell("wiki.test", ".flight").await?.split('/').next_back(),
        Some("1"),
        "nothing was changed"
    );

    stage.press(&input, &["End", "Backspace", "Enter"]).await?;
    stage.until(&format!("!{}.textContent.includes('/')", part("wiki.test", ".flight"))).await?;
    let complaints = stage.close().await?;
    let refused = |text: &String| text.contains("422 (Unprocessable Entity)");
    assert!(complaints.len() == 2 && complaints.iter().all(refused), "{complaints:?}");
    Ok(())
}

#[tokio::test]
async fn rows_are_sorted_by_keyboard_and_stay_where_they_are() -> TestResult {
    let stage = Stage::open("sort", DESK).await?;
    let button = "document.querySelector('[data-by=started]')";
    let order = "[...document.querySelectorAll('#rows .started')].map((cell) => Number(cell.textContent))";
    let sorted = "document.querySelector('th:has([data-by=started])').getAttribute('aria-sort')";
    assert_eq!(stage.get::<String>(sorted).await?, "none");
    stage.until(&format!("new Set({order}).size === 6")).await?;
    for (way, up) in [("descending", false), ("ascending", true)] {
        // In one go: a snapshot in between may change the numbers.
        stage
            .get::<bool>(&format!(
                "{button}.addEventListener('click', () => {{ window.order = {order}; }}, {{ once: true }}), true"
            ))
            .await?;
        stage.press(button, &["Enter"]).await?;
        let numbers: Vec<u64> = stage.get("window.order").await?;
        assert_eq!(numbers.len(), 6);
        assert!(numbers.is_sorted_by(|a, b| if up { a <= b } else { a >= b }), "{way}: {numbers:?}");
        assert_eq!(stage.get::<String>(sorted).await?, way);
    }
    let others =
        "[...document.querySelectorAll('[aria-sort]')].filter((th) => th.ariaSort !== 'none').length";
    assert_eq!(stage.get::<usize>(others).await?, 1);
    assert!(stage.get::<bool>(&format!("document.activeElement === {button}")).await?, "focus stays");

    // Numbers move on, rows do not.
    let names: Vec<String> = stage.get(NAMES).await?;
    let started = stage.number("api.test", ".started").await?;
    stage.until(&format!("Number({}.textContent) > {started} + 40", part("api.test", ".started"))).await?;
    assert_eq!(stage.get::<Vec<String>>(NAMES).await?, names);
    end(stage).await
}

#[tokio::test]
async fn page_fits_a_phone_and_a_desk_in_the_light_and_in_the_dark() -> TestResult {
    for (name, size) in [("phone", PHONE), ("desk", DESK)] {
        let stage = Stage::open(name, size).await?;
        let tops = "[...document.querySelectorAll('#rows tr')].map((row) => row.getBoundingClientRect().top)";
        let before: Vec<f64> = stage.get(tops).await?;
        let started = stage.number("api.test", ".started").await?;
        stage
            .until(&format!("Number({}.textContent) > {started} + 60", part("api.test", ".started")))
            .await?;
        assert_eq!(stage.get::<Vec<f64>>(tops).await?, before, "{name}: no row moves");
        assert_eq!(stage.get::<i64>("innerWidth").await?, size.0);
        let wide: i64 = stage.get("document.documentElement.scrollWidth").await?;
        assert!(wide <= size.0, "{name}: {wide}");
        // Nothing sticks out, nothing is cut, and nothing to press is too small for a finger.
        let outside = "[...document.querySelectorAll('body *')].filter((node) => {
            const box = node.getBoundingClientRect();
            return box.width > 1 && (box.left < 0 || box.right > innerWidth);
        }).map((node) => node.outerHTML.slice(0, 80))";
        assert_eq!(stage.get::<Vec<String>>(outside).await?, [""; 0], "{name}");
        let cut = "[...document.querySelectorAll('th, td, button, select, p, li')]
            .filter((node) => node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0)
            .map((node) => node.outerHTML.slice(0, 80))";
        assert_eq!(stage.get::<Vec<String>>(cut).await?, [""; 0], "{name}");
        let heights = "Math.min(...[...document.querySelectorAll('button, input, select')].map((node) => node.offsetHeight))";
        let least: f64 = stage.get(heights).await?;
        assert!(least >= if name == "phone" { 40.0 } else { 24.0 }, "{name}: {least} px");

        let colour =
            "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.body).color";
        for (scheme, colours) in
            [("light", "rgb(255, 255, 255)rgb(28, 30, 33)"), ("dark", "rgb(21, 23, 26)rgb(232, 234, 237)")]
        {
            stage.colours(scheme).await?;
            assert_eq!(stage.get::<String>(colour).await?, colours);
            stage.picture(&format!("{name}-{scheme}")).await?;
        }
        end(stage).await?;
    }
    Ok(())
}

#[tokio::test]
async fn focus_is_seen_and_every_control_has_a_name_of_its_own() -> TestResult {
    let stage = Stage::open("focus", DESK).await?;
    let names = "[...document.querySelectorAll('#rows button')].map((button) => button.ariaLabel)";
    let mut names: Vec<String> = stage.get(names).await?;
    let labels = "[...document.querySelectorAll('#rows input')].map((input) => input.labels[0].textContent)";
    names.extend(stage.get::<Vec<String>>(labels).await?);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 18, "{names:?}");

    // The tab key goes through the headings and then along the first row.
    let at = "document.activeElement.ariaLabel ?? document.activeElement.textContent";
    stage.press("document.querySelector('#lasting')", &["Tab"]).await?;
    assert_eq!(stage.get::<String>(at).await?, "Slot");
    let outline = "getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth";
    assert_eq!(stage.get::<String>(outline).await?, "solid3px");
    stage.press("document.querySelector('[data-by=refused]')", &["Tab"]).await?;
    assert_eq!(stage.get::<String>(at).await?, "Pause api.test");
    end(stage).await
}
