//! `exec`: runs an unmodified program with the preload library; `library`: prints the library's path or header.

use crate::connect::{self, Service};
use crate::failure::{Failure, Outcome};
use crate::intercept::{MOUNTED_VARIABLE, PrivateView, Reach, Registry, reach};
use crate::{library, output};
use clap::{Args, ValueEnum};
use forebay_client::{COUNTS_VARIABLE, ClientConfig, Credential, names_prefix};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf, absolute};
use std::process::Command;

/// Advice for a program that neither the library nor a private mount can serve.
const ADVICE: &str =
    "mount the service yourself (\"forebay mount DIR\") and pass the program paths under DIR";

#[derive(Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    service: Service,
    /// Directory under which the program sees Forebay's files
    #[arg(long, value_name = "DIR", env = "FOREBAY_PREFIX", default_value = "/fb", hide_env_values = true)]
    prefix: PathBuf,
    /// How the program's system calls are intercepted
    #[arg(
        long,
        value_name = "HOW",
        env = "FOREBAY_INTERCEPT",
        default_value = "auto",
        hide_env_values = true
    )]
    intercept: Intercept,
    /// Exit when the parent process exits
    #[arg(long, hide = true)]
    with_parent: bool,
    /// Use a private mount: the preload library of the calling program cannot be loaded into this one
    #[arg(long, hide = true)]
    by_mount: bool,
    /// The program's first argument (argv 0)
    #[arg(long, hide = true)]
    argv0: Option<OsString>,
    /// The program's working directory
    #[arg(long, hide = true)]
    cwd: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// How the system calls of a program are intercepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Intercept {
    /// Choose what the program needs
    #[default]
    Auto,
    /// Functions of the C library, by a preloaded library
    Library,
    /// Raw system calls too, by the kernel's Syscall User Dispatch (x86-64; slower)
    Dispatch,
    /// No interception: the program gets a private mount at the prefix
    Mount,
}

impl Intercept {
    /// The name of the mode, on the command line and in `FOREBAY_INTERCEPT`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Intercept::Auto => "auto",
            Intercept::Library => "library",
            Intercept::Dispatch => "dispatch",
            Intercept::Mount => "mount",
        }
    }
}

impl Exec {
    pub(crate) fn run(self) -> Outcome {
        check_prefix(&self.prefix)?;
        let service = self.service.resolve()?;
        connect::require_listener(&service.addresses)?;
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        if let Some(name) = &self.argv0 {
            command.arg0(name);
        }
        command.env("FOREBAY_INTERCEPT", self.intercept.word());
        self.provide_files(&mut command, &service)?;
        if self.with_parent {
            // The setting survives `exec`.
            set_parent_process_death_signal(Some(Signal::TERM))
                .map_err(|error| Failure::Failed(format!("cannot watch the parent process: {error}")))?;
        }
        // Returns only on failure.
        let error = command.exec();
        Err(Failure::unrunnable(Path::new(&self.command[0]), &error))
    }
}

impl Exec {
    /// Makes Forebay's files visible to the program, by the library or by a private mount.
    fn provide_files(&self, command: &mut Command, service: &ClientConfig) -> Outcome {
        if std::env::var_os(MOUNTED_VARIABLE).is_some_and(|dir| dir == self.prefix) {
            return Ok(());
        }
        let program = &self.command[0];
        let reach = match reach(program) {
            // The program lies in Forebay, or its lookup in PATH gives another result in this process.
            Reach::Library if self.by_mount => {
                Reach::Mount(format!("{} cannot load the preload library", program.display()))
            }
            Reach::Library if self.intercept == Intercept::Mount => {
                Reach::Mount("--intercept mount was given".into())
            }
            reach => reach,
        };
        match reach {
            Reach::Library => prepare(command, service, &self.prefix),
            Reach::Mount(why) => self.mount(command, &why),
            Reach::Never(why) => Err(Failure::Failed(format!(
                "{why}, so neither the library nor a private mount can serve it: copy its files with \"forebay get\" \
                 and \"forebay put\", or mount the service for all users (\"forebay mount -o allow_other DIR\")"
            ))),
        }
    }

    /// Gives the program a private mount.
    fn mount(&self, command: &mut Command, why: &str) -> Outcome {
        let here = || std::env::current_dir().map_err(|error| Failure::local("find", Path::new("."), &error));
        let dir = self.cwd.clone().map_or_else(here, Ok)?;
        let failed = |cannot: &str| {
            Failure::Failed(format!("{why}, and a private mount is not possible ({cannot}): {ADVICE}"))
        };
        let registry =
            Registry::of(&self.service, &self.prefix)?.map_err(|error| failed(&error.to_string()))?;
        if let Some(process) = registry.server() {
            PrivateView::join(process, &dir).map_err(|cannot| failed(&cannot))?;
        } else {
            let view = match PrivateView::begin() {
                Ok(view) => view,
                Err(cannot) if self.by_mount && !self.names_forebay_path(&dir) => {
                    let prefix = self.prefix.display();
                    output::note(format_args!(
                        "{why}, and it does not see {prefix} (no private mount: {cannot})"
                    ));
                    return Ok(());
                }
                Err(cannot) => return Err(failed(&cannot)),
            };
            registry.clear().map_err(|error| failed(&error.to_string()))?;
            view.enter(&self.service, &self.prefix, &dir, &registry).map_err(|failure| {
                let text = failure.text().unwrap_or("a private mount failed");
                Failure::Failed(format!("{why}, and {text}: {ADVICE}"))
            })?;
        }
        registry.join().map_err(|error| failed(&error.to_string()))?;
        command.env(MOUNTED_VARIABLE, &self.prefix);
        Ok(())
    }

    /// Whether the working directory or an argument of the command names a path under the prefix.
    fn names_forebay_path(&self, dir: &Path) -> bool {
        let prefix = self.prefix.as_os_str().as_bytes();
        let names = |word: &OsString| names_prefix(word.as_bytes(), prefix);
        dir.starts_with(&self.prefix) || self.command.iter().any(names)
    }
}

/// The file that marks that programs of a run have used a private mount, whose calls are not counted; it lies beside the
/// page of call counters.
pub(crate) fn mounted_mark(counts: &Path) -> PathBuf {
    counts.with_extension("mounted")
}

/// Leaves that mark, if this process belongs to a run.
pub(crate) fn mark_mounted() {
    if let Some(counts) = std::env::var_os(COUNTS_VARIABLE) {
        // Without it, the run only warns that no program has used the buffer.
        let _ = std::fs::File::create(mounted_mark(Path::new(&counts)));
    }
}

/// Rejects a prefix that is relative or the root directory.
pub(crate) fn check_prefix(prefix: &Path) -> Outcome {
    if prefix.is_absolute() && prefix != Path::new("/") {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "the prefix {} cannot be used: give an absolute path such as /fb",
        prefix.display()
    )))
}

#[derive(Args)]
pub(crate) struct Library {
    /// Print the C header instead
    #[arg(long)]
    header: bool,
}

impl Library {
    pub(crate) fn run(self) -> Outcome {
        match self.header {
            true => output::text(library::HEADER.trim_end()),
            false => output::text(library::extract(&library::FOREBAY)?.display()),
        }
    }
}

/// Preloads the library into a command and passes it the address of the service.
fn prepare(command: &mut Command, config: &ClientConfig, prefix: &Path) -> Outcome {
    let preload = library::prepend_preload(library::extract(&library::FOREBAY)?);
    command
        .env("LD_PRELOAD", preload)
        .env("FOREBAY_SERVICE", config.addresses.to_string())
        .env("FOREBAY_PREFIX", prefix);
    // The library runs programs that it cannot be loaded into through this binary.
    if let Ok(this) = std::env::current_exe() {
        command.env("FOREBAY_EXEC", this);
    }
    if let Credential::File(key) = &config.credential {
        // The program may change its directory before it connects.
        let key = absolute(key).map_err(|error| Failure::local("use", key, &error))?;
        command.env("FOREBAY_KEY", key);
    }
    if let Some(security) = config.security {
        command.env("FOREBAY_SECURITY", security.to_string());
    }
    command.env("FOREBAY_REQUEST_TIME", config.request_timeout.as_millis().to_string());
    Ok(())
}
