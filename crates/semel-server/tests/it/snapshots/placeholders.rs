//! Names instead of values that differ from run to run.

/// Replaces ids, times, addresses, durations and measured numbers. Spaces that align columns count as two.
pub(super) fn replaced(text: &str) -> String {
    let text = text.replace(env!("CARGO_PKG_VERSION"), "<version>");
    let mut replaced = String::new();
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        let mut before = ' ';
        while let Some(first) = rest.chars().next() {
            // In the middle of a word nothing begins.
            let begins = !before.is_alphanumeric() && before != '_';
            let found = if begins { RULES.iter().find_map(|rule| rule(rest)) } else { None };
            match found {
                Some((length, name)) => {
                    replaced.push_str(name);
                    before = '>';
                    rest = &rest[length..];
                }
                None => {
                    replaced.push(first);
                    before = first;
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
    }
    narrowed(&replaced)
}

/// A rule returns the length of the text at the start that it knows, and its name.
type Rule = fn(&str) -> Option<(usize, &'static str)>;

const RULES: [Rule; 10] =
    [address, machine, moment, date, typed_id, worker, hex_id, duration, measured, large_number];

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn word(text: &str) -> usize {
    text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count()
}

/// `127.0.0.1:4711`
fn address(text: &str) -> Option<(usize, &'static str)> {
    let port = text.strip_prefix("127.0.0.1:")?;
    // The address that is never served is part of the command line.
    let length = digits(port);
    (length > 1).then_some((text.len() - port.len() + length, "<address>"))
}

/// Addresses of machines are no numbers with a fraction.
fn machine(text: &str) -> Option<(usize, &'static str)> {
    ["127.0.0.1", "0.0.0.0"]
        .into_iter()
        .find(|known| text.starts_with(known))
        .map(|known| (known.len(), known))
}

/// `2026-11-18T02:13:11.676Z`
fn moment(text: &str) -> Option<(usize, &'static str)> {
    let bytes = text.as_bytes();
    let is_moment = bytes.len() >= 20 && digits(text) == 4 && bytes[4] == b'-' && bytes[10] == b'T';
    let end = text.find('Z').filter(|end| *end < 30)?;
    is_moment.then_some((end + 1, "<time>"))
}

/// `Wed, 18 Nov 2026 02:13:11 GMT`
fn date(text: &str) -> Option<(usize, &'static str)> {
    let days = ["Mon,", "Tue,", "Wed,", "Thu,", "Fri,", "Sat,", "Sun,"];
    let end = text.find(" GMT").filter(|end| *end < 30)?;
    days.iter().any(|day| text.starts_with(day)).then_some((end + 4, "<date>"))
}

/// `evt_01M7P6VXM5TFK0TSXXGVVPE67G`, and `dlv_…-1` for an attempt.
fn typed_id(text: &str) -> Option<(usize, &'static str)> {
    let kinds = [
        ("evt_", "<event>"),
        ("run_", "<run>"),
        ("dlv_", "<delivery>"),
        ("dlq_", "<dead letter>"),
        ("rpl_", "<job>"),
    ];
    let (_, name) = kinds.iter().find(|(kind, _)| text.starts_with(kind))?;
    (word(text) == 30).then_some((30, *name))
}

/// `worker-4711-2b7340c5`
fn worker(text: &str) -> Option<(usize, &'static str)> {
    let rest = text.strip_prefix("worker-")?;
    let (process, number) = (digits(rest), rest.split_once('-').map_or(0, |(_, number)| word(number)));
    (process > 0 && number == 8).then_some(("worker-".len() + process + 1 + number, "<worker>"))
}

/// 32 or 64 hexadecimal digits: the id of a key or a request.
fn hex_id(text: &str) -> Option<(usize, &'static str)> {
    let length = word(text);
    let is_hex = text.bytes().take(length).all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_hex && (length == 32 || length == 64)).then_some((length, "<id>"))
}

/// `3h 12m`, `41s`, `250ms`: an age or a measured time. Settings have them too.
fn duration(text: &str) -> Option<(usize, &'static str)> {
    let one = |text: &str| {
        let number = digits(text);
        let unit = &text[number..word(text)];
        (number > 0 && ["ms", "s", "m", "h", "d"].contains(&unit)).then_some(number + unit.len())
    };
    let first = one(text)?;
    let second = text[first..].strip_prefix(' ').and_then(one).map_or(0, |length| length + 1);
    Some((first + second, "<duration>"))
}

/// `0.285`: only measured numbers have a fraction. And numbers behind a name that ends with a unit.
fn measured(text: &str) -> Option<(usize, &'static str)> {
    if let Some((name, rest)) = text.split_once("\":").or_else(|| text.split_once('=')) {
        let is_measured = ["_ms", "_seconds", "fence"].iter().any(|ending| name.ends_with(ending));
        if is_measured && word(name) == name.len() && digits(rest) > 0 {
            let fraction = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
            return Some((text.len() - rest.len() + fraction, "<measured>"));
        }
    }
    let whole = digits(text);
    let fraction = text[whole..].strip_prefix('.').map_or(0, digits);
    (whole > 0 && fraction > 0).then_some((whole + 1 + fraction, "<number>"))
}

/// Ten digits and more: fences, which contain a time.
fn large_number(text: &str) -> Option<(usize, &'static str)> {
    let length = digits(text);
    (length >= 10 && length == word(text)).then_some((length, "<number>"))
}

fn narrowed(text: &str) -> String {
    let mut narrowed = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        narrowed.push_str(&line[..indent]);
        let mut spaces = 0;
        for letter in line[indent..].chars() {
            spaces = if letter == ' ' { spaces + 1 } else { 0 };
            if spaces <= 2 {
                narrowed.push(letter);
            }
        }
        narrowed.push('\n');
    }
    narrowed
}

#[test]
fn values_have_names() {
    for (text, expected) in [
        ("id  evt_01M7P6VXM5TFK0TSXXGVVPE67G    x\n", "id  <event>  x\n"),
        ("dlv_01M7P6VXM5TFK0TSXXGVVPE67G-1", "<delivery>-1\n"),
        ("at 2026-11-18T02:13:11.676Z, 3h 12m ago, 250ms", "at <time>, <duration> ago, <duration>\n"),
        ("http://127.0.0.1:4711/v1 and 127.0.0.1:1", "http://<address>/v1 and 127.0.0.1:1\n"),
        ("f1c96297dfa537d016983df1599a94cd done", "<id> done\n"),
        ("{\"claim_ms\":0.28,\"latency_ms\":12,\"n\":12}", "{\"<measured>,\"<measured>,\"n\":12}\n"),
        ("fence=1794967976544927 1.5 ms of 3", "<measured> <number> ms of 3\n"),
    ] {
        assert_eq!(replaced(text), expected);
    }
}
