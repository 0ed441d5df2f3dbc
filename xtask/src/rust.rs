//! Just enough of Rust's grammar to look for words in code and not in comments or strings.

/// The text with comments, strings and characters blanked out; lines stay where they are.
pub(crate) fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = end_of_blank(&chars, at);
        if end > at {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none starts there.
fn end_of_blank(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    let inside_word = at > 0 && is_word(chars[at - 1]);
    let len = match rest {
        ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment(rest),
        ['"', ..] => quoted(rest, '"'),
        ['b' | 'c', '"', ..] if !inside_word => 1 + quoted(&rest[1..], '"'),
        ['b', '\'', ..] if !inside_word => 1 + quoted(&rest[1..], '\''),
        ['r', '"' | '#', ..] if !inside_word => raw(&rest[1..]).map_or(0, |len| 1 + len),
        ['b' | 'c', 'r', '"' | '#', ..] if !inside_word => raw(&rest[2..]).map_or(0, |len| 2 + len),
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => quoted(rest, '\''),
        _ => 0,
    };
    at + len
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A raw string after its `r`; none if this is a raw identifier.
fn raw(rest: &[char]) -> Option<usize> {
    let hashes = rest.iter().take_while(|c| **c == '#').count();
    if rest.get(hashes) != Some(&'"') {
        return None;
    }
    let body = hashes + 1;
    let closes = |at: &usize| {
        rest[*at] == '"' && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    Some((body..rest.len()).find(closes).map_or(rest.len(), |at| at + 1 + hashes))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The lines (from 1) of `code` that hold `word` as a whole word.
pub(crate) fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let holds = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    };
    code.lines().enumerate().filter(|(_, line)| holds(line)).map(|(index, _)| index + 1).collect()
}

/// Whether `code` defines a test function of that name: `fn name` below an attribute that speaks of a test.
pub(crate) fn has_test(code: &str, name: &str) -> bool {
    let head = format!("fn {name}");
    // Most files do not have it: they are not split into lines.
    if !code.contains(&head) {
        return false;
    }
    let lines: Vec<&str> = code.lines().collect();
    lines_with(code, &head).into_iter().any(|number| {
        let above = lines[..number - 1].iter().rev();
        let attributes = above.take_while(|line| line.trim().is_empty() || line.trim().starts_with("#["));
        lines[number - 1].contains("#[test]") || attributes.into_iter().any(|line| line.contains("test"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let squeezed = code(text).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed, expected, "{text}");
        assert_eq!(code(text).lines().count(), text.lines().count(), "{text}");
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        check("a // unsafe\nb", "a b");
        check("a /* x /* y */ z */ b", "a b");
        check("/// doc\nfn f() {}", "fn f() {}");
        check(r#"a("unsafe \" still", b"x", c"y") + 1"#, "a( , , ) + 1");
        check("r#\"one \" two\"# + br\"\\\" + r#type", "+ + r#type");
        check(
            "fn f<'a>(x: &'a str, c: char) { c == '\"' || c == '\\'' || b'x' == 1 }",
            "fn f<'a>(x: &'a str, c: char) { c == || c == || == 1 }",
        );
        check("\"never closed", "");
        check("/* never closed", "");
        check("r#\"never closed\"", "");
        check("var\"x\"", "var");
        check("a \"two\nlines\" b", "a b");
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(lines_with("unsafe {\nunsafe_code\nmy_unsafe\n(unsafe)", "unsafe"), [1, 4]);
    }

    #[test]
    fn a_test_is_a_function_with_an_attribute() {
        let code = code(
            "#[test]\n/// Why.\n#[cfg(unix)]\nfn one() {}\n#[tokio::test(flavor = \"x\")]\nasync fn two() {}\nfn helper() {}\n#[inline]\nfn fast() {}\n#[test] fn three() {}",
        );
        assert!(has_test(&code, "one") && has_test(&code, "two") && has_test(&code, "three"));
        assert!(!has_test(&code, "helper") && !has_test(&code, "fast") && !has_test(&code, "on"));
    }
}
