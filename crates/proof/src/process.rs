//! A client process that works on one file, for tests that kill it or take turns with it.

use forebay_client::blocking::Client;
use forebay_client::{Addresses, ClientConfig, Credential};
use forebay_model::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs `work` on the file given by the arguments: service, key and path.
#[expect(clippy::print_stderr, reason = "the test reads it")]
pub fn process(work: fn(&Client, &str) -> Result<(), Error>) -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, key, path] = &words[..] else {
        eprintln!("invalid arguments: {words:?}");
        return ExitCode::from(2);
    };
    let connect = || {
        let config = ClientConfig::new(address.parse::<Addresses>()?);
        Client::connect(ClientConfig { credential: Credential::File(PathBuf::from(key)), ..config })
    };
    match connect().and_then(|client| work(&client, path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
