//! Runs a program whose files are placed on storage targets.

use super::spec;
use crate::failure::{Failure, Outcome};
use crate::{library, output};
use clap::Args;
use forebay_client::{Address, Addresses};
use forebay_model::{Error, Job};
use forebay_policy::place::{Limits, SETTING, Service, Setting, Topology, Weights};
use forebay_report::topology::{self, Written};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

/// Functions that the linker replaces with those of the placement library.
const WRAPPED: [&str; 8] = ["open", "open64", "openat", "openat64", "creat", "creat64", "fopen", "fopen64"];

#[derive(Args)]
pub(super) struct Exec {
    /// Mount point of the parallel file system; new files below it are placed
    #[arg(long, value_name = "DIR")]
    pfs: PathBuf,
    /// The topology.toml; without it the topology is read from Lustre
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Number of targets, if nothing else is known about them
    #[arg(long, value_name = "COUNT", conflicts_with = "topology")]
    targets: Option<u32>,
    /// A target that must not be used; may be given several times
    #[arg(long, value_name = "TARGET")]
    exclude: Vec<String>,
    /// Log the layout of each file, and all errors, to this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Append the counters of each process to this file, as a line of JSON
    #[arg(long, value_name = "FILE")]
    counts: Option<PathBuf>,
    /// A running Forebay that assigns turns to processes on all machines: unix:/path or tcp:host:port
    #[arg(long, value_name = "ADDR", env = "FOREBAY_SERVICE", hide_env_values = true)]
    service: Option<String>,
    /// Its key file, for TCP
    #[arg(long, value_name = "FILE", env = "FOREBAY_KEY", hide_env_values = true)]
    key: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Exec {
    pub(super) fn run(self) -> Outcome {
        let pfs =
            std::fs::canonicalize(&self.pfs).map_err(|error| Failure::local("use", &self.pfs, &error))?;
        let Written { topology, limits, weights } = self.described(&pfs)?;
        let preload = library::extract(&library::PLACE)?;
        let home = preload.parent().unwrap_or(Path::new("/")).to_owned();
        let job = forebay_client::job_of_this_process();
        let bytes = |path: &Option<PathBuf>| {
            let whole = path.as_ref().map(std::path::absolute).transpose();
            let whole = whole.map_err(|error| Failure::local("use", Path::new("."), &error))?;
            Ok::<_, Failure>(whole.map(|path| path.as_os_str().as_bytes().to_vec()))
        };
        let turns = home.join(format!("place-{:016x}.turns", job.id().0));
        make(&turns)?;
        let setting = Setting {
            prefix: pfs.as_os_str().as_bytes().to_vec(),
            description: topology.description().clone(),
            weights,
            limits,
            job: job.id().0,
            service: self.turn_service(job)?,
            turns: Some(turns.as_os_str().as_bytes().to_vec()),
            log: bytes(&self.log)?,
            counts: bytes(&self.counts)?,
        };
        let written = write(&home, &setting)?;
        let mut command = std::process::Command::new(&self.command[0]);
        command.args(&self.command[1..]).env(SETTING, written);
        command.env("LD_PRELOAD", library::prepend_preload(preload));
        // Returns only on failure.
        let error = command.exec();
        Err(Failure::unrunnable(Path::new(&self.command[0]), &error))
    }

    /// The service that assigns turns, if one was given.
    fn turn_service(&self, job: Job) -> Outcome<Option<Service>> {
        let Some(named) = self.service.as_ref().filter(|name| !name.is_empty()) else { return Ok(None) };
        let addresses: Addresses = named.parse().map_err(|error: Error| Failure::Usage(error.to_string()))?;
        if addresses.iter().count() > 1 {
            let text = format!(
                "one server counts turns for all processes: name one address with --service, not {addresses}"
            );
            return Err(Failure::Usage(text));
        }
        let address = addresses.first();
        let key = self.key.as_ref().filter(|_| matches!(address, Address::Tcp { .. }));
        let key = key.map(std::path::absolute).transpose();
        let key = key.map_err(|error| Failure::local("use", Path::new("."), &error))?;
        let key = key.map(|path| path.as_os_str().as_bytes().to_vec());
        Ok(Some(Service { address: address.to_string(), key, job }))
    }

    fn described(&self, pfs: &Path) -> Outcome<Written> {
        if let Some(path) = &self.topology {
            return spec::topology(path, &self.exclude);
        }
        let flat = self.targets.filter(|&count| count > 0).map(Topology::flat);
        let found = flat.map(|flat| flat.description().clone()).or_else(|| forebay_backend::lustre(pfs));
        let help =
            "no Lustre file system describes its targets on this machine: give --topology or --targets";
        let mut description = found.ok_or_else(|| Failure::Usage(help.to_owned()))?;
        topology::exclude(&mut description, &self.exclude)
            .map_err(|what| Failure::Usage(format!("--exclude: {what}")))?;
        let topology = Topology::new(description).map_err(|flaw| Failure::Failed(flaw.to_string()))?;
        Ok(Written { topology, limits: Limits::LUSTRE, weights: Weights::default() })
    }
}

/// Creates an empty file if it is missing.
fn make(path: &Path) -> Outcome {
    let made = std::fs::OpenOptions::new().append(true).create(true).open(path);
    made.map(drop).map_err(|error| Failure::local("make", path, &error))
}

/// Writes a setting to a file named by its hash, so that equal settings share a file.
fn write(home: &Path, setting: &Setting) -> Outcome<PathBuf> {
    let bytes = postcard::to_stdvec(setting)
        .map_err(|error| Failure::Failed(format!("cannot write the setting: {error}")))?;
    let path = home.join(format!("place-{:016x}.setting", xxhash_rust::xxh3::xxh3_64(&bytes)));
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(home)?;
        file.write_all(&bytes)?;
        file.persist(&path)?;
        Ok(())
    };
    match std::fs::read(&path) {
        Ok(found) if found == bytes => Ok(path),
        _ => write()
            .map(|()| path.clone())
            .map_err(|error: std::io::Error| Failure::local("write", &path, &error)),
    }
}

/// Linker flags to append after a program's own objects.
pub(super) fn ldflags() -> Outcome {
    let archive = library::extract(&library::PLACE_ARCHIVE)?;
    let wraps: Vec<String> = WRAPPED.iter().map(|name| format!("-Wl,--wrap={name}")).collect();
    output::text(format_args!("{} {} -lpthread -ldl -lm -lgcc_eh", wraps.join(" "), archive.display()))
}
