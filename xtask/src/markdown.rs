//! Markdown, as far as checks need it: headings, links, command lines and blocks.

/// Something on a page, and its line (from 1).
#[derive(Debug, PartialEq)]
pub(crate) struct Found<T> {
    pub(crate) line: usize,
    pub(crate) what: T,
}

/// Lines outside of fenced blocks.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    page.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        (!fenced && !is_fence).then_some((index + 1, line))
    })
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
pub(crate) fn anchors(page: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in prose(page) {
        let Some(title) = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
        else {
            continue;
        };
        let slug = slug(title);
        let before = anchors.iter().filter(|anchor| **anchor == slug || is_numbered(anchor, &slug)).count();
        anchors.push(if before == 0 { slug } else { format!("{slug}-{before}") });
    }
    anchors
}

fn is_numbered(anchor: &str, slug: &str) -> bool {
    let number = anchor.strip_prefix(slug).and_then(|rest| rest.strip_prefix('-'));
    number.is_some_and(|number| !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()))
}

fn slug(title: &str) -> String {
    // Of a link in a title only the text counts.
    let mut text = String::new();
    let mut rest = title;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The targets of all links and pictures.
pub(crate) fn links(page: &str) -> Vec<Found<&str>> {
    let mut links = Vec::new();
    for (line, text) in prose(page) {
        // What stands in backticks is code: every second piece.
        for piece in text.split('`').step_by(2) {
            for after in piece.split("](").skip(1) {
                if let Some((target, _)) = after.split_once(')') {
                    links.push(Found { line, what: target });
                }
            }
        }
        // A link whose text is code ends in a piece of its own: `](target)` right behind a backtick is found above,
        // because its piece begins with the bracket.
    }
    links
}

/// The command lines of a program in fenced blocks of shell, as words; and the lines in blocks of no language.
pub(crate) struct Commands {
    pub(crate) shown: Vec<Found<Vec<String>>>,
    /// Lines that look like commands in a block that does not say that it is shell.
    pub(crate) unmarked: Vec<usize>,
}

/// The command lines that start with `program`.
pub(crate) fn commands(page: &str, program: &str) -> Commands {
    let mut commands = Commands { shown: Vec::new(), unmarked: Vec::new() };
    let mut language: Option<&str> = None;
    let mut begun: Option<(usize, String)> = None;
    for (index, line) in page.lines().enumerate() {
        let trimmed = line.trim();
        if let Some(name) = trimmed.strip_prefix("```") {
            language = if language.is_some() { None } else { Some(name) };
            continue;
        }
        let starts = trimmed.trim_start_matches("$ ").split(' ').next() == Some(program);
        match language {
            Some("") if starts => commands.unmarked.push(index + 1),
            Some("sh") => {}
            _ => continue,
        }
        if language != Some("sh") {
            continue;
        }
        let (at, mut text) = begun.take().unwrap_or((index + 1, String::new()));
        text.push_str(trimmed);
        if let Some(open) = text.strip_suffix('\\') {
            begun = Some((at, open.to_owned()));
            continue;
        }
        let simple = split(&text).into_iter().map(|words| plain(&words));
        let ours = simple.filter(|words| words.first().is_some_and(|word| word == program));
        commands.shown.extend(ours.map(|what| Found { line: at, what }));
    }
    commands
}

/// Commands of `program` that prose mentions in backticks, as words: without brackets and ellipses, and once for each
/// alternative that a bar separates.
pub(crate) fn mentions(page: &str, program: &str) -> Vec<Found<Vec<String>>> {
    let mut mentions = Vec::new();
    for (line, text) in prose(page) {
        for span in text.split('`').skip(1).step_by(2) {
            let Some(rest) = span.strip_prefix(program).and_then(|rest| rest.strip_prefix(' ')) else {
                continue;
            };
            // Text that a program prints or signs may begin with its name too; a command is a word.
            if !rest.starts_with(|c: char| c.is_ascii_lowercase()) {
                continue;
            }
            mentions.extend(alternatives(span).into_iter().map(|what| Found { line, what }));
        }
    }
    mentions
}

fn alternatives(span: &str) -> Vec<Vec<String>> {
    let span = span.replace("\\|", "|").replace(['[', ']'], "");
    let mut all = vec![Vec::new()];
    for word in span.split_whitespace().map(|word| word.trim_end_matches('…')).filter(|word| !word.is_empty())
    {
        let choices: Vec<&str> = word.split('|').filter(|choice| !choice.is_empty()).collect();
        let before = std::mem::take(&mut all);
        for choice in choices {
            all.extend(before.iter().map(|words: &Vec<String>| {
                let mut words = words.clone();
                words.push(choice.to_owned());
                words
            }));
        }
    }
    all
}

/// A fenced block: the words behind its fence, and its text.
pub(crate) struct Block<'a> {
    pub(crate) info: &'a str,
    pub(crate) text: String,
}

/// The fenced blocks of a page, each with the line of its fence.
pub(crate) fn blocks(page: &str) -> Vec<Found<Block<'_>>> {
    let mut blocks = Vec::new();
    let mut open: Option<Found<Block<'_>>> = None;
    for (index, line) in page.lines().enumerate() {
        match (line.trim().strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(info), None) => {
                open =
                    Some(Found { line: index + 1, what: Block { info: info.trim(), text: String::new() } });
            }
            (None, Some(mut block)) => {
                block.what.text.push_str(line);
                block.what.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    blocks
}

/// A command without the variables that are set for it.
fn plain(words: &[String]) -> Vec<String> {
    let is_setting = |word: &String| {
        let name = word.split_once('=').map(|(name, _)| name).unwrap_or_default();
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    words.iter().skip_while(|word| is_setting(word)).cloned().collect()
}

/// The simple commands of a line of shell: words with quotes taken away, without comments and redirections.
fn split(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut letters = line.chars().peekable();
    let mut quote = None;
    while let Some(c) = letters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ';' | '|' | '&') => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (None, '>' | '<') => {
                // The file is no word of the command.
                words.extend(word.take());
                while letters.next_if(|c| matches!(c, ' ' | '>' | '&')).is_some() {}
                while letters.next_if(|c| *c != ' ').is_some() {}
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    all.push(words);
    all.retain(|words| !words.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_the_headings() {
        let page = "# Forebay\n## Keys & `key grant`\n```sh\n# no heading\n```\n## One\n## One\n#hash\n### [A b](c.md) d\n";
        assert_eq!(anchors(page), ["forebay", "keys--key-grant", "one", "one-1", "a-b-d"]);
    }

    #[test]
    fn links_in_prose_are_found_and_code_is_left_alone() {
        let page = "see [a](x.md#y) and [`b`](z.md), `[c](no.md)`\n```\n[d](no.md)\n```\n![e](p.svg)\n";
        let found: Vec<_> = links(page).iter().map(|link| (link.line, link.what)).collect();
        assert_eq!(found, [(1, "x.md#y"), (1, "z.md"), (5, "p.svg")]);
    }

    #[test]
    fn command_lines_of_shell_blocks_are_found_as_words() {
        let page = "```sh\ncd x && forebay ls 'a b' | wc   # forebay no\nFOREBAY_KEY=k forebay df > out --json\n\
                    forebay up \\\n  --detach\n# forebay no\n```\n```text\nforebay no\n```\n```\nforebay unmarked\n```\n";
        let found = commands(page, "forebay");
        let lines: Vec<_> = found.shown.iter().map(|found| (found.line, found.what.join("+"))).collect();
        let expected = [(2, "forebay+ls+a b"), (3, "forebay+df+--json"), (4, "forebay+up+--detach")];
        assert_eq!(lines, expected.map(|(line, text)| (line, text.to_owned())));
        assert_eq!(found.unmarked, [12]);
    }

    #[test]
    fn commands_in_prose_are_found_without_notation() {
        let page = "Say `forebay key grant|revoke ID`, `forebay drain [PATH] [--order …]` or `forebay`.\n\
                    | a | `forebay stage in\\|out` |\n`forebay 1 token key` is text, `forebays up` no command\n\
                    ```sh\n`forebay no`\n```\n";
        let found: Vec<_> = mentions(page, "forebay").iter().map(|m| (m.line, m.what.join(" "))).collect();
        let expected = [
            (1, "forebay key grant ID"),
            (1, "forebay key revoke ID"),
            (1, "forebay drain PATH --order"),
            (2, "forebay stage in"),
            (2, "forebay stage out"),
        ];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn blocks_have_their_info_and_text() {
        let page = "a\n```toml plan\nx = 1\n\ny = 2\n```\nb\n```\nplain\n```\n```sh\nnever closed\n";
        let found: Vec<_> =
            blocks(page).into_iter().map(|b| (b.line, b.what.info.to_owned(), b.what.text)).collect();
        let expected = [(2, "toml plan", "x = 1\n\ny = 2\n"), (8, "", "plain\n")];
        assert_eq!(found, expected.map(|(line, info, text)| (line, info.to_owned(), text.to_owned())));
    }
}
