//! `reference`: the book's reference, from the code that reads command lines and `forebay.toml`.
//!
//! `cargo xtask book` writes it, `cargo xtask verify book` compares it with what is committed.

mod commands;
mod settings;

use crate::failure::{Failure, Outcome};
use crate::settings::Settings;
use crate::{Cli, mount, output};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub(crate) enum Reference {
    /// Print all commands as Markdown
    Commands,
    /// Print the names of all commands that can be run, hidden ones too
    Names,
    /// Print all keys of forebay.toml with their values and defaults, as JSON
    Settings,
    /// Read command lines, as JSON arrays of words, from standard input; print for each why it is refused, or null
    Lines {
        /// The lines are mentions in text: arguments may be missing, and placeholders may stand for values
        #[arg(long)]
        mentions: bool,
    },
    /// Read a settings file like forebay.toml, and print nothing if it is valid
    Check {
        /// The file
        file: PathBuf,
    },
    /// Write man pages to a directory
    Man {
        /// The directory; created if missing
        dir: PathBuf,
    },
}

impl Reference {
    pub(crate) fn run(&self) -> Outcome {
        match self {
            Reference::Commands => output::bytes(commands::markdown(Cli::command()).as_bytes()),
            Reference::Names => output::bytes(commands::names(Cli::command()).as_bytes()),
            Reference::Settings => output::bytes(settings::json()?.as_bytes()),
            Reference::Lines { mentions } => {
                let mut text = String::new();
                std::io::stdin()
                    .read_to_string(&mut text)
                    .map_err(|error| Failure::local("read", Path::new("standard input"), &error))?;
                let lines: Vec<Vec<String>> = serde_json::from_str(&text).map_err(|error| {
                    Failure::Usage(format!("standard input: {error}: write arrays of words"))
                })?;
                let refused: Vec<Option<String>> =
                    lines.iter().map(|line| refusal(line, *mentions)).collect();
                output::bytes(serde_json::json!(refused).to_string().as_bytes())
            }
            Reference::Check { file } => Settings::load(Some(file)).map(|_| ()),
            Reference::Man { dir } => commands::man(Cli::command(), dir),
        }
    }
}

/// Why a command line is no command line of this program. A mention is refused only for a command or an option that
/// does not exist.
fn refusal(words: &[String], is_mention: bool) -> Option<String> {
    let words = mount::arguments(words.iter().map(std::ffi::OsString::from));
    let error = Cli::try_parse_from(words).err()?;
    let is_unknown = matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand);
    // A line that asks for help or the version is a command line.
    let is_refused = is_unknown || (!is_mention && error.use_stderr());
    is_refused.then(|| error.render().to_string().lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_accepted_or_refused_as_by_the_program() {
        for (line, refused) in [
            ("forebay up --capacity 4GiB --detach", None),
            ("forebay run --pfs results/ -- mpiexec -n 4 ./app /fb/out", None),
            ("forebay key grant alice --expires 30d", None),
            ("forebay --help", None),
            ("forebay up --capasity 4GiB", Some("--capasity")),
            ("forebay pot a b", Some("pot")),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let found = refusal(&words, false);
            match refused {
                None => assert_eq!(found, None, "{line}"),
                Some(word) => {
                    assert!(found.as_deref().is_some_and(|why| why.contains(word)), "{line}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn mentions_may_lack_arguments_but_name_commands_and_options_that_exist() {
        for (line, is_refused) in [
            ("forebay key grant", false),
            ("forebay policy route MODE", false),
            ("forebay drain PATH --wait --order", false),
            ("forebay key gant", true),
            ("forebay key grant --expire", true),
            ("forebay down --node NAME", true),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(refusal(&words, true).is_some(), is_refused, "{line}");
        }
    }
}
