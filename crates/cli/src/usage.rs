//! Errors in the command line, in one line as every other error.

use crate::failure::{Failure, Outcome};
use crate::{Cli, output};
use clap::CommandFactory;
use clap::error::ErrorKind;

/// Prints the requested help, or returns the error.
pub(crate) fn explain(error: &clap::Error) -> Outcome {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::text(error.render().to_string().trim_end())
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            Err(Failure::Usage("a command is missing: try \"forebay --help\"".to_owned()))
        }
        _ => Err(Failure::Usage(one_line(&error.render().to_string(), &command()))),
    }
}

/// The subcommand that the first argument names.
fn command() -> String {
    let first = std::env::args().nth(1).unwrap_or_default();
    match Cli::command().find_subcommand(&first) {
        Some(command) => format!("forebay {}", command.get_name()),
        None => "forebay".to_owned(),
    }
}

/// Folds the paragraphs of a clap message (error, tips, usage) into one line that ends with advice.
fn one_line(message: &str, command: &str) -> String {
    let mut parts = Vec::new();
    let mut command = command.to_owned();
    for paragraph in message.split("\n\n") {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        match words.first() {
            Some(&"Usage:") => {
                let names = words[1..].iter().take_while(|word| word.starts_with(char::is_alphanumeric));
                command = names.copied().collect::<Vec<_>>().join(" ");
            }
            Some(&"error:") => parts.push(words[1..].join(" ")),
            Some(&"For") | None => {}
            _ => parts.push(words.join(" ")),
        }
    }
    format!("{}: try \"{command} --help\"", parts.join("; ").trim_end_matches(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_messages_become_one_line() {
        for (message, line) in [
            (
                "error: unrecognized subcommand 'pot'\n\n  tip: a similar subcommand exists: 'put'\n\n\
                 Usage: forebay <COMMAND>\n\nFor more information, try '--help'.\n",
                "unrecognized subcommand 'pot'; tip: a similar subcommand exists: 'put': try \"forebay --help\"",
            ),
            (
                "error: the following required arguments were not provided:\n  <LOCAL>...\n  <REMOTE>\n\n\
                 Usage: forebay put <LOCAL>... <REMOTE>\n\nFor more information, try '--help'.\n",
                "the following required arguments were not provided: <LOCAL>... <REMOTE>: try \"forebay put --help\"",
            ),
        ] {
            assert_eq!(one_line(message, "forebay"), line);
        }
    }
}
